package verbs

import "github.com/softroce/softroce/internal/uapi"

// ImpairRule is a rule in place that impairs the adapter's packets.
type ImpairRule = uapi.ImpairRule

// Impair has the adapter harm packets on purpose, by rules of which
// docs/rdmatest.md has the words, one a line. They take the place of those that
// there are; none takes them all away. It concerns the packets of every program,
// so it is for root and the adapter's own user. EPERM: for nobody else. EINVAL: a
// line is no rule.
func (d *Device) Impair(rules string) error {
	_, err := d.impair(uapi.ImpairRequest{Mode: uapi.ImpairReplace, Rules: rules})
	return err
}

// AddImpair puts rules behind those that there are, and returns their numbers.
func (d *Device) AddImpair(rules string) (ids []int, err error) {
	return d.impair(uapi.ImpairRequest{Mode: uapi.ImpairAdd, Rules: rules})
}

// RemoveImpair takes a rule away. ENOENT: there is none of that number.
func (d *Device) RemoveImpair(id int) error {
	_, err := d.impair(uapi.ImpairRequest{Mode: uapi.ImpairRemove, ID: id})
	return err
}

func (d *Device) impair(req uapi.ImpairRequest) ([]int, error) {
	var rep uapi.ImpairReply
	err := d.ctl.do("impair", uapi.OpImpair, &req, &rep)
	return rep.IDs, err
}

// ImpairRules lists the rules in place, with what they did. Every program may ask.
func (d *Device) ImpairRules() ([]ImpairRule, error) {
	var rep uapi.ListImpairReply
	err := d.ctl.do("list impairments", uapi.OpListImpair, &uapi.ListImpairRequest{}, &rep)
	return rep.Rules, err
}
