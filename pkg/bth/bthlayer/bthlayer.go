// Package bthlayer makes RoCEv2 a layer of gopacket. Importing it registers UDP
// port 4791, so that any gopacket program decodes RoCEv2 packets:
//
//	import _ "github.com/softroce/softroce/pkg/bth/bthlayer"
//
// It owns the glue alone: bytes are parsed and built by package bth.
package bthlayer

import (
	"errors"
	"fmt"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softroce/softroce/pkg/bth"
)

// Port is RoCEv2's UDP destination port (Annex A17).
const Port = 4791

// LayerTypeRoCEv2 is the layer of everything from BTH to ICRC.
var LayerTypeRoCEv2 = gopacket.RegisterLayerType(Port, gopacket.LayerTypeMetadata{
	Name: "RoCEv2", Decoder: gopacket.DecodeFunc(decodeRoCEv2),
})

// init registers the port with gopacket, whose registry is global.
func init() { layers.RegisterUDPPortLayerType(Port, LayerTypeRoCEv2) }

// RoCEv2 is a RoCEv2 packet in a gopacket. Its contents are the BTH and the
// extended headers, its payload the message's bytes without pad and ICRC. It is
// both a DecodingLayer and a SerializableLayer.
type RoCEv2 struct {
	layers.BaseLayer
	// Packet is what package bth parsed; its slices lie in the packet's bytes.
	// SerializeTo does not use it.
	Packet bth.Packet
	// Headers are the fields of the BTH and of every extended header that the
	// opcode carries.
	Headers bth.Headers
	// ICRC is the invariant CRC that the packet carries.
	ICRC uint32
	// Net, when not nil, is what SerializeTo computes the ICRC over when it is
	// to compute checksums. Decoding leaves it as it is.
	Net *bth.NetHeader
}

// LayerType returns LayerTypeRoCEv2.
func (r *RoCEv2) LayerType() gopacket.LayerType { return LayerTypeRoCEv2 }

// CanDecode returns LayerTypeRoCEv2.
func (r *RoCEv2) CanDecode() gopacket.LayerClass { return LayerTypeRoCEv2 }

// NextLayerType returns gopacket's payload layer when there is a payload.
func (r *RoCEv2) NextLayerType() gopacket.LayerType {
	if len(r.Payload) == 0 {
		return gopacket.LayerTypeZero
	}
	return gopacket.LayerTypePayload
}

// DecodeFromBytes parses data, a UDP payload. The errors are those of
// bth.Packet.Parse.
func (r *RoCEv2) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	r.BaseLayer, r.Headers, r.ICRC = layers.BaseLayer{}, bth.Headers{}, 0
	if err := r.Packet.Parse(data); err != nil {
		if errors.Is(err, bth.ErrShort) {
			df.SetTruncated()
		}
		return fmt.Errorf("decode RoCEv2: %w", err)
	}
	r.Contents = data[:r.Packet.Info.HeaderLen]
	r.Payload = r.Packet.Payload
	r.Headers = r.Packet.Headers()
	r.ICRC = r.Packet.ICRC()
	return nil
}

// Verify reports whether the ICRC fits the IP packet around it, given as
// the IPv4 or IPv6 layer of the same gopacket. It allocates. The error says
// why there is none to verify.
func (r *RoCEv2) Verify(ip gopacket.NetworkLayer) (bool, error) {
	// Both slices lie side by side in the captured packet unless it was
	// reassembled or built by hand, so they are joined.
	whole := append(append([]byte(nil), ip.LayerContents()...), ip.LayerPayload()...)
	want, got, err := bth.ICRCOfIPPacket(whole)
	return err == nil && want == got, err
}

// SerializeTo writes headers, payload, pad and ICRC around what b holds, which is
// the payload. With FixLengths it sets the pad count. With ComputeChecksums and
// Net it computes the ICRC; else it writes ICRC as it is.
func (r *RoCEv2) SerializeTo(b gopacket.SerializeBuffer, opts gopacket.SerializeOptions) error {
	if !r.Headers.BTH.Opcode.Info().Defined {
		return fmt.Errorf("serialize RoCEv2: %v: %w", r.Headers.BTH.Opcode, bth.ErrReserved)
	}
	payloadLen := len(b.Bytes())
	if opts.FixLengths {
		r.Headers.BTH.Pad = bth.PadLen(payloadLen)
	}
	var scratch [bth.MaxHeaderLen]byte
	hdr := r.Headers.Append(scratch[:0])
	front, err := b.PrependBytes(len(hdr))
	if err != nil {
		return err
	}
	copy(front, hdr)
	tail, err := b.AppendBytes(int(r.Headers.BTH.Pad&3) + bth.ICRCLen)
	if err != nil {
		return err
	}
	clear(tail)
	whole := b.Bytes()
	end := len(whole) - bth.ICRCLen
	if opts.ComputeChecksums && r.Net != nil {
		r.ICRC = bth.ICRC(r.Net.Seed(len(whole)), whole[:end])
	}
	bth.PutICRC(whole[end:], r.ICRC)
	return nil
}

// decodeRoCEv2 is the layer's decoder in gopacket's registry.
func decodeRoCEv2(data []byte, p gopacket.PacketBuilder) error {
	r := new(RoCEv2)
	if err := r.DecodeFromBytes(data, p); err != nil {
		return err
	}
	p.AddLayer(r)
	if next := r.NextLayerType(); next != gopacket.LayerTypeZero {
		return p.NextDecoder(next)
	}
	return nil
}
