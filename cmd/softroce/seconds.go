package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

// maxSeconds bounds options that are times in seconds, three decades: what is longer
// is a mistake, and no time.Duration.
const maxSeconds = 1e9

// seconds is an option that is a time in seconds, 0 to maxSeconds.
type seconds float64

// secondsVar adds one; short may be empty.
func secondsVar(c *cobra.Command, p *seconds, name, short string, value seconds, usage string) {
	*p = value
	c.Flags().VarP(p, name, short, usage)
}

// String implements pflag.Value.
func (s *seconds) String() string { return strconv.FormatFloat(float64(*s), 'g', -1, 64) }

// Type implements pflag.Value.
func (*seconds) Type() string { return "float" }

// Set implements pflag.Value.
func (s *seconds) Set(text string) error {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v >= 0 && v <= maxSeconds) { // written so that NaN is refused
		return fmt.Errorf("want 0 to %g seconds", float64(maxSeconds))
	}
	*s = seconds(v)
	return nil
}

// duration is the time.
func (s seconds) duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }
