package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/softroce/softroce/internal/impair"
	"github.com/softroce/softroce/pkg/verbs"
)

// maxRulesFile bounds what is read of a file of rules: comments are no rules.
const maxRulesFile = 1 << 20

func newImpairCmd() *cobra.Command {
	var socket string
	var add bool
	c := &cobra.Command{
		Use:   "impair (FILE | - | RULE...)",
		Short: "Harm a running adapter's packets on purpose, by rules",
		Long: `impair puts rules in place that drop, delay, duplicate, corrupt or reorder packets of a running daemon, hold them to
a rate, or part it from a peer: from a file, from the standard input, or as arguments, one rule each. They take the place
of those that there are, or with --add come behind them. They hold until "softroce impair clear", or the daemon's end.

A rule is an action and which packets it is about, as

  drop sent ACK nth 3
  drop 5% received seed 7
  delay 2ms..4ms to 192.0.2.1
  corrupt byte 20 WRITE every 100
  reorder 3 READ-RESPONSE qp 0x11
  partition 192.0.2.1 in 1s for 500ms

docs/rdmatest.md has all words; a # begins a comment. Rules concern the packets of every program: only root and the
daemon's own user may change them.`,
		Example: `  softroce impair 'drop 1%' 'delay 200us..1ms sent'
  softroce impair bad-network.rules
  softroce impair show
  softroce impair clear`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &exitError{exitUsage, errors.New(impairUsage)}
			}
			text, err := rulesText(c.Context(), args, c.InOrStdin())
			if rules, perr := impair.Parse(text); err == nil && perr == nil && len(rules) == 0 {
				// Whoever wrote the file or the pipe may have failed.
				err = errors.New(`there is no rule; "softroce impair clear" takes those away that are in place`)
			}
			if err != nil {
				return &exitError{exitUsage, fmt.Errorf("impair: %w", err)}
			}
			return withDevice(socket, func(d *verbs.Device) error {
				if !add {
					return d.Impair(text)
				}
				_, err := d.AddImpair(text)
				return err
			})
		},
	}
	c.Flags().BoolVar(&add, "add", false, "keep the rules that there are")
	addSocketFlag(c, &socket)
	c.AddCommand(newImpairShowCmd(), newImpairClearCmd())
	return c
}

// impairUsage answers a command without rules.
const impairUsage = `impair: give rules, or a file of them, or "show" or "clear", as
  softroce impair 'drop 1%' 'delay 200us..1ms sent'
  softroce impair bad-network.rules
softroce impair --help says more, docs/rdmatest.md has all words of a rule`

func newImpairShowCmd() *cobra.Command {
	var socket string
	var asJSON bool
	c := &cobra.Command{
		Use:   "show",
		Short: "Show the rules in place, with the packets that they matched and harmed",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withDevice(socket, func(d *verbs.Device) error {
				rules, err := d.ImpairRules()
				if err != nil {
					return err
				}
				if asJSON {
					return json.NewEncoder(c.OutOrStdout()).Encode(append([]verbs.ImpairRule{}, rules...))
				}
				return showRules(c.OutOrStdout(), rules)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	addSocketFlag(c, &socket)
	return c
}

func newImpairClearCmd() *cobra.Command {
	var socket string
	c := &cobra.Command{
		Use:   "clear [NUMBER...]",
		Short: "Take the rules away, or those of these numbers",
		RunE: func(_ *cobra.Command, args []string) error {
			ids := make([]int, len(args))
			for i, s := range args {
				var err error
				if ids[i], err = strconv.Atoi(s); err != nil {
					return &exitError{exitUsage, fmt.Errorf("impair clear: %q is no number of a rule (softroce impair show)", s)}
				}
			}
			return withDevice(socket, func(d *verbs.Device) error {
				if len(ids) == 0 {
					return d.Impair("")
				}
				var errs []error
				for _, id := range ids {
					errs = append(errs, d.RemoveImpair(id))
				}
				return errors.Join(errs...)
			})
		},
	}
	addSocketFlag(c, &socket)
	return c
}

func withDevice(socket string, f func(*verbs.Device) error) error {
	d, err := verbs.Open(&verbs.Options{Socket: socket})
	if err != nil {
		return err
	}
	defer d.Close()
	return f(d)
}

// rulesText is the text of rules given as a file's name, as "-" or as rules; it is
// checked here, so that an error names the file and the line.
func rulesText(ctx context.Context, args []string, stdin io.Reader) (string, error) {
	if len(args) > 1 || strings.ContainsAny(strings.TrimSpace(args[0]), " \t\n") || isRule(args[0]) {
		return argRules(args)
	}
	return readRules(ctx, args[0], stdin)
}

// argRules checks rules given as arguments: an error names the rule, or its line where the argument has several.
func argRules(args []string) (string, error) {
	for _, a := range args {
		_, err := impair.Parse(a)
		if err == nil {
			continue
		}
		if line := (*impair.ParseError)(nil); errors.As(err, &line) && !strings.Contains(a, "\n") {
			err = fmt.Errorf("rule %q: %w", a, line.Err)
		}
		if whole := strings.Join(args, " "); len(args) > 1 && isRule(whole) {
			err = fmt.Errorf("%q are %d arguments, and each is a rule of its own: quote one that has blanks, as softroce impair '%s'", whole, len(args), whole)
		}
		return "", err
	}
	text := strings.Join(args, "\n")
	_, err := impair.Parse(text) // together they may be too many
	if line := (*impair.ParseError)(nil); errors.As(err, &line) {
		err = line.Err
	}
	return text, err
}

func isRule(s string) bool {
	_, err := impair.ParseRule(s)
	return err == nil
}

// readRules reads and checks a file of rules, "-" for stdin.
func readRules(ctx context.Context, name string, stdin io.Reader) (string, error) {
	f, err := openInput(ctx, name, stdin)
	if errors.Is(err, os.ErrNotExist) {
		_, notRule := impair.ParseRule(name)
		if notRule == nil {
			return "", fmt.Errorf("%q is a rule, and no file: put it into one", name)
		}
		return "", fmt.Errorf("%q is neither a file nor a rule: %w", name, notRule)
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	if name == "-" {
		name = "standard input"
	}
	b, err := io.ReadAll(io.LimitReader(f, maxRulesFile+1))
	if err != nil {
		return "", fmt.Errorf("rules: %w", err)
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("read %s: ended by a signal", name) // half of the rules are no rules
	}
	if len(b) > maxRulesFile {
		return "", fmt.Errorf("%s is longer than %d bytes", name, maxRulesFile)
	}
	rules, err := impair.Parse(string(b))
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	text := make([]string, len(rules)) // without comments
	for i := range rules {
		text[i] = rules[i].String()
	}
	return strings.Join(text, "\n"), nil
}

func showRules(out io.Writer, rules []verbs.ImpairRule) error {
	if len(rules) == 0 {
		_, err := fmt.Fprintln(out, "no rules: packets pass as they are")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "number\tmatched\tharmed\trule")
	for _, r := range rules {
		over := ""
		if r.Over {
			over = "  (over)"
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%s%s\n", r.ID, r.Matched, r.Hit, r.Rule, over)
	}
	return w.Flush()
}
