package main

// lossOnly: packets are lost, none is doubled or overtaken; an unreliable connection would show it.
const lossOnly = "4 0 0"

var (
	overUC     = setup{typ: typeUC}
	overUD     = setup{typ: typeUD}
	overUD6    = setup{typ: typeUD, ipv6: true}
	byWindow   = setup{access: windowOnly}
	twoPairs   = setup{access: windowOnly, qps: 2}
	ucLoss     = setup{typ: typeUC, size: 1 << 20}
	sharedByRC = setup{qps: 3, srq: 64, size: 1 << 19, rnrTimer: 20}
	sharedByUD = setup{typ: typeUD, srq: 64, size: 1 << 18}
)

// serviceCases are those of the other services, of shared receive queues and of memory.
var serviceCases = []verbsCase{
	{name: "uc/send", about: "UC SEND of every kind of length", setup: overUC, run: caseSend},
	{name: "uc/send-imm", about: "UC SEND with immediate", setup: overUC, run: caseSendImm},
	{name: "uc/write", about: "UC WRITE to odd addresses", setup: overUC, run: caseUCWrite},
	{name: "uc/write-imm", about: "UC WRITE with immediate", setup: overUC, run: caseWriteImm},
	{name: "uc/mixed-ipv6", about: "all of UC in one batch", setup: setup{typ: typeUC, ipv6: true, mtu: 256}, run: caseUCMixed},
	{name: "uc/no-receive", about: "a SEND that no receive waits for is lost", setup: overUC, run: caseUCDrops},
	{name: "uc/loss-send", about: "SENDs under loss: whole and in order, or not at all", setup: ucLoss, impaired: true, loss: lossOnly, run: func(l *link) { l.lossy(false) }},
	{name: "uc/loss-write", about: "WRITEs with immediate under loss", setup: ucLoss, impaired: true, loss: lossOnly, run: func(l *link) { l.lossy(true) }},
	{name: "ud/send", about: "datagrams of every size, and answers by a handle of what came", setup: overUD, run: caseDatagrams},
	{name: "ud/send-ipv6", about: "the same between IPv6 GIDs", setup: overUD6, run: caseDatagrams},
	{name: "ud/qkey", about: "datagrams with other Q_Keys are dropped", setup: overUD, run: caseQKey},
	{name: "ud/mcast", about: "a multicast group, IPv4", setup: overUD, run: caseGroup("::ffff:239.77.0.9")},
	{name: "ud/mcast-ipv6", about: "a multicast group, IPv6", setup: overUD6, run: caseGroup("ff0e::77:9")},
	{name: "srq/rc", about: "three connections that share receives, the limit event", setup: sharedByRC, run: caseSharedRC, shows: map[string]int{"rnr nak": 1}},
	{name: "srq/ud", about: "datagrams into a shared receive queue, the limit event", setup: sharedByUD, run: caseSharedUD},
	{name: "memory/mw1", about: "windows of type 1: bound, bound again, unbound", setup: byWindow, connections: 4, runMany: caseWindow1},
	{name: "memory/mw2", about: "windows of type 2, of one queue pair", setup: twoPairs, connections: 4, runMany: caseWindow2},
	{name: "memory/send-inv", about: "SEND with invalidate of a window", setup: byWindow, run: caseSendInv},
	{name: "memory/local-inv", about: "local invalidate of a window", setup: byWindow, run: caseLocalInv},
	{name: "memory/rereg", about: "re-registration with other rights", connections: 2, runMany: caseRereg, ours: true},
}
