package rdmacm

import (
	"context"
	"net/netip"

	"github.com/softroce/softroce/pkg/verbs"
)

// LookupUD asks a listener in the port space of datagrams for its queue pair
// (SIDR): where to send to, and the private data of the answer, zero padded. Of
// conf, which may be nil, PD, QP and Prepare mean nothing. Errors as with Dial.
func LookupUD(ctx context.Context, dev *verbs.Device, to netip.AddrPort, conf *Config) (UDParam, []byte, error) {
	if conf == nil {
		conf = &Config{}
	}
	h, err := newHub(dev)
	if err != nil {
		return UDParam{}, nil, err
	}
	defer h.unuse()
	b := newMailbox(h)
	id, e, err := dial(ctx, b, PSUDP, to, conf)
	if err != nil {
		return UDParam{}, nil, err
	}
	b.close()
	return e.UD, e.Private, id.Destroy()
}

// AnswerUD answers a request of [Listener.Request] in the port space of datagrams
// with a queue pair and the queue key that it takes datagrams with, and ends the
// request. private is at most MaxAcceptUDPrivate bytes.
func (r *Request) AnswerUD(qpn verbs.QPN, qkey verbs.QKey, private []byte) error {
	err := r.id.Accept(&ConnParam{QPN: qpn, QKey: qkey, PrivateData: private})
	r.drop()
	return err
}
