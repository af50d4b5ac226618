// Package bth turns the bytes of a RoCEv2 packet into header values and back.
//
// It owns the Base Transport Header and every extended header, the one table
// of opcodes, the invariant CRC, and the numbers that travel in these headers
// (PSN, QPN, P_Key, Q_Key, GID, syndromes, timer codes) with their arithmetic.
//
// It refuses state, sockets, clocks, and any opinion on what an opcode does:
// whether a packet is acceptable to a queue pair is the transport's rule.
//
// A header is a type over bytes (BTH, RETH, ...) with one accessor per field,
// and a struct of fields (BTHFields, RETHFields, ...) whose Append encodes it
// at the end of the caller's slice. Lengths are checked once, by Packet.Parse;
// after it no accessor of a header that the opcode carries can panic.
//
// All fields are big endian on the wire but one: the ICRC is stored with its
// least significant byte first. Nothing here depends on the byte order of the
// machine, and nothing allocates per packet.
package bth
