// Package inspect makes what `softroce resource` and `softroce stat` show: which
// objects and counters, as a table for people or as JSON for programs, once or
// time after time with rates. It refuses to know flags, and any adapter but
// through the public API's listings.
//
// A table has one header line and one line an object, its columns set apart by
// two blanks or more; what has no value is "-", so that every line has as many
// fields as the header. Only the last column, the program's name, may hold blanks.
// Numbers of queue pairs, PSNs and keys are hexadecimal there, as packets are
// printed; JSON has plain numbers, and null for what has no value.
package inspect

import "github.com/softroce/softroce/pkg/verbs"

// Source is what is looked at; *verbs.Device is one.
type Source interface {
	Resources(kind verbs.ResourceKind) ([]verbs.Resource, error)
	Counters() ([]verbs.Counter, error)
	Name() string
}
