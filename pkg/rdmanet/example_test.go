package rdmanet_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/netip"

	"github.com/softroce/softroce/pkg/adapter"
	"github.com/softroce/softroce/pkg/rdmanet"
	"github.com/softroce/softroce/pkg/verbs"
)

// An HTTP server and its client, unchanged, over RDMA.
func Example() {
	server, client := open("127.113.5.1"), open("127.113.5.2") // on a host with a daemon: verbs.Open(nil)

	l, err := rdmanet.Listen(server, "127.113.5.1:8080")
	check(err)
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:errcheck // ends with the listener (2026-11)
		fmt.Fprintf(w, "hello over %s", l.Addr().Network())
	}))

	dialer := &rdmanet.Dialer{Device: client}
	web := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
	answer, err := web.Get("http://127.113.5.1:8080/")
	check(err)
	body, err := io.ReadAll(answer.Body)
	check(err)
	fmt.Println(answer.Status, string(body))

	check(answer.Body.Close())
	web.CloseIdleConnections()
	check(l.Close())
	// Output: 200 OK hello over rdma
}

func open(addr string) *verbs.Device {
	a, err := adapter.Start(adapter.Config{Addrs: []netip.Addr{netip.MustParseAddr(addr)}})
	check(err)
	dev, err := a.Open()
	check(err)
	return dev
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
