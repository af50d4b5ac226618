// Package metrics gives an adapter's counters their Prometheus names. It owns
// the names, labels and help texts, and counts nothing itself: each scrape
// takes one snapshot.
//
// Where the kernel's rdma_rxe has a hw_counter of the same meaning, the metric
// is softroce_NAME_total with the kernel's NAME. Every metric has the label
// adapter; those a worker counts have the label worker, too.
package metrics
