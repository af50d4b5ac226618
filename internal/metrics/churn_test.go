package metrics

import (
	"github.com/softroce/softroce/internal/nic"
	"github.com/softroce/softroce/internal/shm"
	"github.com/softroce/softroce/pkg/verbs"
)

// churn is one program's short life: it connects, makes queue pairs, ends one
// of them and is gone.
func churn(a *nic.Adapter) error {
	ours, theirs, err := shm.Socketpair()
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.ServeConn(theirs)
	}()
	defer func() { <-done }()
	d, err := verbs.OpenConn(ours)
	if err != nil {
		return err
	}
	defer d.Close()
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	cq, err := d.CreateCQ(4, nil, 0)
	if err != nil {
		return err
	}
	var qp *verbs.QP
	for range 2 {
		if qp, err = pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq}); err != nil {
			return err
		}
	}
	return qp.Destroy()
}
