// Package capture writes and reads captures of RoCEv2 traffic.
//
// Writer makes a pcapng file out of packets for which only the UDP payload and a
// few facts of the IP header are at hand, as an adapter on UDP sockets has them;
// what is not known is said in the packet's comment. Decode reads any pcap or
// pcapng file and describes its RoCEv2 packets, one Record each.
//
// It owns file formats, link-layer framing and the words in which a packet is
// described. It refuses sockets and protocol rules; headers are parsed by package
// bth alone.
package capture
