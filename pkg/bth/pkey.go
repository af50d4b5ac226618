package bth

// PKey is a partition key: 15 bits of partition and, as bit 15, full membership.
type PKey uint16

// DefaultPKey is the default partition with full membership, the only entry of
// a RoCE port's table.
const DefaultPKey PKey = 0xFFFF

// pkeyPartition covers the bits that name the partition.
const pkeyPartition PKey = 0x7FFF

// Match reports whether packets with key b are accepted under key p: same
// partition, which is not 0, and at least one of the two a full member
// (IBTA Vol 1 §10.9.3).
func (p PKey) Match(b PKey) bool {
	return (p^b)&pkeyPartition == 0 && p&pkeyPartition != 0 && (p|b)&^pkeyPartition != 0
}

// QKey is a queue key, which a datagram must carry to be accepted
// (IBTA Vol 1 §10.2.5).
type QKey uint32

// GSIQKey is the queue key of QP 1 (IBTA Vol 1 §10.2.5).
const GSIQKey QKey = 0x80010000
