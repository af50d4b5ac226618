package impair

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/softroce/softroce/pkg/bth"
)

// ops is what a rule says of opcodes: a set of them, and for plain
// acknowledgements which kinds.
type ops struct {
	any            bool // nothing was said
	set            [256 / 64]uint64
	ack, nak, rnr  bool
	connectionWork bool // datagrams to queue pair 1
}

func (o *ops) add(op bth.Opcode) { o.set[op/64] |= 1 << (op % 64) }

// addWhere takes in the opcodes that f accepts; false when there are none.
func (o *ops) addWhere(f func(*bth.OpcodeInfo) bool) (found bool) {
	for i := range 256 {
		if info := bth.Opcode(i).Info(); info.Defined && f(info) {
			o.add(bth.Opcode(i))
			found = true
		}
	}
	return found
}

func isOp(list ...bth.Op) func(*bth.OpcodeInfo) bool {
	return func(i *bth.OpcodeInfo) bool { return slices.Contains(list, i.Op) }
}

func isAt(p bth.Position) func(*bth.OpcodeInfo) bool {
	return func(i *bth.OpcodeInfo) bool { return i.Position == p }
}

// classes are the words for many opcodes.
var classes = map[string]func(*bth.OpcodeInfo) bool{
	"SEND":          isOp(bth.OpSend),
	"WRITE":         isOp(bth.OpWrite),
	"READ":          isOp(bth.OpReadRequest),
	"READ-RESPONSE": isOp(bth.OpReadResponse),
	"ATOMIC":        isOp(bth.OpCmpSwap, bth.OpFetchAdd),
	"ATOMIC-ACK":    isOp(bth.OpAtomicAck),
	"CMP-SWAP":      isOp(bth.OpCmpSwap),
	"FETCH-ADD":     isOp(bth.OpFetchAdd),
	"FLUSH":         isOp(bth.OpFlush),
	"ATOMIC-WRITE":  isOp(bth.OpAtomicWrite),
	"CNP":           isOp(bth.OpCNP),
	"REQUEST":       func(i *bth.OpcodeInfo) bool { return i.Request },
	"RESPONSE":      func(i *bth.OpcodeInfo) bool { return i.Response },
	"DATAGRAM":      func(i *bth.OpcodeInfo) bool { return i.Class == bth.ClassUD },
	"FIRST":         isAt(bth.First),
	"MIDDLE":        isAt(bth.Middle),
	"LAST":          isAt(bth.Last),
	"ONLY":          isAt(bth.Only),
}

// OpWords lists the words for opcodes, besides the opcodes' own names.
func OpWords() []string {
	words := []string{"ACK", "NAK", "RNR", "MAD"}
	for w := range classes {
		words = append(words, w)
	}
	slices.Sort(words)
	return words
}

// addWord takes in what a word stands for.
func (o *ops) addWord(word string) error {
	word = strings.ToUpper(word)
	switch word {
	case "ACK":
		o.ack = true
		return nil
	case "NAK":
		o.nak = true
		return nil
	case "RNR":
		o.rnr = true
		return nil
	case "MAD":
		o.connectionWork = true
		return nil
	}
	if f := classes[word]; f != nil {
		o.addWhere(f)
		return nil
	}
	if n, err := strconv.ParseUint(word, 0, 8); err == nil && strings.HasPrefix(word, "0X") {
		o.add(bth.Opcode(n))
		return nil
	}
	if o.addWhere(func(i *bth.OpcodeInfo) bool { return opName(i) == word }) {
		return nil
	}
	return fmt.Errorf("%q is no opcode: one of %s, an opcode's name as RC-SEND-ONLY, or its number as 0x04", word, strings.Join(OpWords(), ", "))
}

// opName is an opcode's name as one word, as RC-RDMA-WRITE-FIRST.
func opName(i *bth.OpcodeInfo) string {
	return strings.ReplaceAll(strings.ToUpper(i.Name), " ", "-")
}

// compile reads the words of a rule.
func compile(words []string) (o ops, err error) {
	o.any = len(words) == 0
	for _, w := range words {
		if err := o.addWord(w); err != nil {
			return o, err
		}
	}
	return o, nil
}

// has says whether a packet is of the opcodes; b is at least a BTH.
func (o *ops) has(b []byte) bool {
	if o.any {
		return true
	}
	h := bth.BTH(b)
	op := h.Opcode()
	if o.set[op/64]&(1<<(op%64)) != 0 {
		return true
	}
	info := op.Info()
	if info.Op == bth.OpAck && len(b) >= bth.BTHLen+bth.AETHLen && info.HeaderLen == bth.BTHLen+bth.AETHLen {
		s := bth.AETH(b[bth.BTHLen:]).Syndrome()
		return o.ack && s.IsACK() || o.nak && s.IsNAK() || o.rnr && s.IsRNR()
	}
	return o.connectionWork && info.Class == bth.ClassUD && info.Defined && h.DestQP() == 1
}
