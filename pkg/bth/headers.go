package bth

// Headers are the fields of a BTH and of every extended header. Which of them
// count is said by the opcode: the rest are ignored.
type Headers struct {
	BTH          BTHFields
	RDETH        RDETHFields
	DETH         DETHFields
	XRCETH       XRCETHFields
	FETH         FETHFields
	RETH         RETHFields
	AtomicETH    AtomicETHFields
	AETH         AETHFields
	AtomicAckETH AtomicAckETHFields
	ImmDt        ImmDt
	IETH         IETHFields
	CNPReserved  CNPReserved
}

// Headers returns the fields of every header of a packet that parsed; those it
// does not carry stay zero.
func (p *Packet) Headers() (f Headers) {
	f.BTH = p.BTH().Fields()
	for h := Header(0); h < headerCount; h++ {
		if p.Has(1 << h) {
			f.read(h, p.header(h))
		}
	}
	return f
}

// read fills the fields of header h from its bytes.
func (f *Headers) read(h Header, b []byte) {
	switch h {
	case HeaderRDETH:
		f.RDETH = RDETH(b).Fields()
	case HeaderDETH:
		f.DETH = DETH(b).Fields()
	case HeaderXRCETH:
		f.XRCETH = XRCETH(b).Fields()
	case HeaderFETH:
		f.FETH = FETH(b).Fields()
	case HeaderRETH:
		f.RETH = RETH(b).Fields()
	case HeaderAtomicETH:
		f.AtomicETH = AtomicETH(b).Fields()
	case HeaderAETH:
		f.AETH = AETH(b).Fields()
	case HeaderAtomicAckETH:
		f.AtomicAckETH = AtomicAckETH(b).Fields()
	case HeaderImmDt:
		f.ImmDt = ImmDt(b)
	case HeaderIETH:
		f.IETH = IETH(b).Fields()
	case HeaderCNPReserved:
		f.CNPReserved = CNPReserved(b)
	case headerCount:
	}
}

// Append appends the BTH and the extended headers of f.BTH.Opcode to b, in wire
// order. A reserved opcode gets its BTH alone.
func (f *Headers) Append(b []byte) []byte {
	b = f.BTH.Append(b)
	set := f.BTH.Opcode.Info().Headers
	for h := Header(0); h < headerCount; h++ {
		if set.Has(1 << h) {
			b = f.append(h, b)
		}
	}
	return b
}

// append appends header h alone.
func (f *Headers) append(h Header, b []byte) []byte {
	switch h {
	case HeaderRDETH:
		return f.RDETH.Append(b)
	case HeaderDETH:
		return f.DETH.Append(b)
	case HeaderXRCETH:
		return f.XRCETH.Append(b)
	case HeaderFETH:
		return f.FETH.Append(b)
	case HeaderRETH:
		return f.RETH.Append(b)
	case HeaderAtomicETH:
		return f.AtomicETH.Append(b)
	case HeaderAETH:
		return f.AETH.Append(b)
	case HeaderAtomicAckETH:
		return f.AtomicAckETH.Append(b)
	case HeaderImmDt:
		return f.ImmDt.Append(b)
	case HeaderIETH:
		return f.IETH.Append(b)
	case HeaderCNPReserved:
		return f.CNPReserved.Append(b)
	case headerCount:
	}
	return b
}
