// Package cases holds the conformance suite's cases: a file a section, a function a statement. A case is written with the
// tester's end of a queue pair (package suite): packets sent by hand, and what the target answers, stores and completes.
//
// It owns what each statement demands. It refuses everything that a case shares with others.
package cases

import (
	"slices"

	"github.com/softroce/softroce/conformance/suite"
)

// All returns every case, in the order of the statements.
func All() []suite.Case {
	return slices.Concat(
		framingCases,
		bthCases,
		icrcCases,
		sendCases,
		writeCases,
		readCases,
		atomicCases,
		psnCases,
		sequenceCases,
		requestCases,
		responseCases,
		timeoutCases,
		ucCases,
		udCases,
		stateCases,
		srqCases,
		memoryCases,
		robustCases,
	)
}

// NotTestable returns the statements that have no case, and why.
func NotTestable() []suite.Untestable {
	return slices.Concat(
		bthNotTestable,
		robustNotTestable,
	)
}
