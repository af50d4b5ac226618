package verbs

import "github.com/softroce/softroce/internal/uapi"

// AttachMcast attaches a UD queue pair to a multicast group (ibv_attach_mcast):
// it gets every datagram to the group from now on, its own ones too. gid is an
// IPv6 multicast address, or an IPv4 one mapped into IPv6; lid means nothing on
// RoCE. A second attachment changes nothing. EINVAL: not a UD queue pair, or not
// a group; ENOMEM: a limit, as the text says.
func (q *QP) AttachMcast(gid GID, lid uint16) error {
	return q.mcast("attach multicast", uapi.OpAttachMcast, gid, lid)
}

// DetachMcast ends an attachment (ibv_detach_mcast). EINVAL: the queue pair is
// not attached to the group.
func (q *QP) DetachMcast(gid GID, lid uint16) error {
	return q.mcast("detach multicast", uapi.OpDetachMcast, gid, lid)
}

func (q *QP) mcast(op string, code uapi.Op, gid GID, lid uint16) error {
	if q.typ != UD {
		return invalid(op, "the queue pair is of type %v, multicast is for UD", q.typ)
	}
	return q.dev.ctl.do(op, code, &uapi.McastRequest{QP: q.handle, GID: gid, LID: uint32(lid)}, nil)
}
