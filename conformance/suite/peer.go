package suite
type Peer struct{}
