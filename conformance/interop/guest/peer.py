#!/usr/bin/env python3
"""The guest's end of the verbs cases: does what it is told, over TCP, with pyverbs on rxe0.

    peer.py ADDRESS PORT

A connection is one end of one case, served by a process of its own. Requests and answers are JSON objects, one a line; a
request names what to do in "do", an answer is its result or {"error": text}. What the cases do and expect is decided by the
other side (conformance/interop/peer); here is no knowledge of any case. Numbers of operations, statuses, flags and access
rights are the verbs API's own. Offsets count from the start of the end's one memory region; bytes travel in base64.

    open     gid, size, access, inline, type, qps, srq, qkey  -> qpns, gid, addr, rkey
    connect  qp, qpn, gid, sq_psn, rq_psn, mtu, rd_atomic, timeout, retry, rnr_retry, rnr_timer
    recv     wrs: [{id, sges: [[offset, length]...]}...]
    send     wrs: [{id, qp, op, flags, sges, addr, rkey, imm, compare_add, swap, inv, ah, remote_qpn, qkey}...]
    poll     count, ms                    -> wcs: [{id, status, op, len, flags, imm, qpn, src_qp, inv}...], at most count
    write    off, data
    read     off, len                     -> data
    state                                 -> state
    break                                 (to the error state)
    ah       gid                          -> ah     (an address handle's index)
    answer   id, off                      -> ah     (of the datagram that completed receive id, header area at off)
    group    gid, join                    (multicast)
    window   type                         -> mw, rkey
    bind     id, mw, off, len, access, flags  -> rkey
    rereg    access                       -> rkey
    limit    limit                        (arms the shared receive queue)
    event    ms                           -> event  (-1: none came)
"""
import base64
import ctypes
import json
import os
import select
import socket
import struct
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import RecvWR, SendWR, SGE

RDMA = (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ)
ATOMIC = (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD)
REMOTE = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
INVALIDATES = (e.IBV_WR_LOCAL_INV, e.IBV_WR_SEND_WITH_INV)
DEPTH = 256
ATTACH, DETACH = 30, 31     # commands of the kernel's uverbs


def gid_of(raw):
    return GID(':'.join('%02x%02x' % (raw[i], raw[i + 1]) for i in range(0, 16, 2)))


class End:
    def __init__(self):
        self.ctx = Context(name='rxe0')
        self.ahs, self.mws, self.groups, self.wcs, self.srq = [], [], {}, {}, None

    def close(self):
        # Windows first: the kernel waits long for a queue pair that goes while a window of type 2 is bound to it.
        for mw in self.mws:
            mw.close()

    def do_open(self, r):
        self.pd, self.cq = PD(self.ctx), CQ(self.ctx, 2 * DEPTH)
        self.mr = MR(self.pd, r['size'], r['access'])
        self.gid = r['gid']
        if r['srq']:
            self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(r['srq'], 4, 0)))
        attr = QPAttr(port_num=1)
        attr.qp_access_flags, attr.qkey = e.IBV_ACCESS_LOCAL_WRITE | REMOTE, r['qkey']
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=4, max_recv_sge=4, max_inline_data=r['inline'])
        init = QPInitAttr(qp_type=r['type'], scq=self.cq, rcq=self.cq, srq=self.srq, cap=cap, sq_sig_all=0)
        self.qps = [QP(self.pd, init, attr) for _ in range(r['qps'])]   # in INIT; of datagrams: in RTS
        return dict(qpns=[qp.qp_num for qp in self.qps], gid=str(self.ctx.query_gid(1, self.gid)), addr=self.mr.buf,
                    rkey=self.mr.rkey)

    def do_connect(self, r):
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | REMOTE
        attr.ah_attr = self.path(r['gid'])
        attr.dest_qp_num, attr.sq_psn, attr.rq_psn, attr.path_mtu = r['qpn'], r['sq_psn'], r['rq_psn'], r['mtu']
        attr.max_rd_atomic = attr.max_dest_rd_atomic = r['rd_atomic']
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = r['timeout'], r['retry'], r['rnr_retry'], r['rnr_timer']
        self.qps[r['qp']].to_rts(attr)

    def path(self, gid):
        return AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=gid_of(socket.inet_pton(socket.AF_INET6, gid)),
                                                                      sgid_index=self.gid, hop_limit=64))

    def sges(self, wr):
        # pyverbs wants at least one element; one without length says the same as none.
        return [SGE(self.mr.buf + off, length, self.mr.lkey) for off, length in wr['sges'] or [(0, 0)]]

    def do_recv(self, r):
        for wr in r['wrs']:
            sges = self.sges(wr)
            (self.srq or self.qps[0]).post_recv(RecvWR(wr_id=wr['id'], sg=sges, num_sge=len(sges)))

    def do_send(self, r):
        for wr in r['wrs']:
            sges = self.sges(wr)
            w = SendWR(wr_id=wr['id'], opcode=wr['op'], num_sge=len(sges), sg=sges, send_flags=wr['flags'],
                       imm_data=wr['inv'] if wr['op'] in INVALIDATES else socket.htonl(wr['imm']))
            if wr['op'] in RDMA:
                w.set_wr_rdma(wr['rkey'], wr['addr'])
            elif wr['op'] in ATOMIC:
                w.set_wr_atomic(wr['rkey'], wr['addr'], wr['compare_add'], wr['swap'])
            elif wr['remote_qpn']:
                w.set_wr_ud(self.ahs[wr['ah']], wr['remote_qpn'], wr['qkey'])
            self.qps[wr['qp']].post_send(w)

    def do_poll(self, r):
        wcs, end = [], time.monotonic() + r['ms'] / 1000
        while len(wcs) < r['count']:
            got = self.cq.poll(1)[1]
            for wc in got or ():
                imm = wc.imm_data & 0xffffffff
                wcs.append(dict(id=wc.wr_id, status=wc.status, op=wc.opcode, len=wc.byte_len, flags=wc.wc_flags,
                                imm=socket.ntohl(imm), qpn=wc.qp_num, src_qp=wc.src_qp, inv=imm))
                self.wcs[wc.wr_id] = wc
            if not got:
                if time.monotonic() > end:
                    break
                time.sleep(0.0002)
        return dict(wcs=wcs)

    def do_write(self, r):
        data = base64.b64decode(r['data'])
        self.mr.write(data, len(data), r['off'])

    def do_read(self, r):
        return dict(data=base64.b64encode(self.mr.read(r['len'], r['off'])).decode())

    def do_state(self, r):
        return dict(state=self.qps[0].query(e.IBV_QP_STATE)[0].qp_state)

    def do_break(self, r):
        self.qps[0].modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)

    def handle(self, ah):
        self.ahs.append(ah)
        return dict(ah=len(self.ahs) - 1)

    def do_ah(self, r):
        return self.handle(AH(self.pd, attr=self.path(r['gid'])))

    def do_answer(self, r):
        # pyverbs cannot make a handle of a completion; libibverbs reads the header area, in a context of its own.
        wc = self.wcs[r['id']]
        c_wc = struct.pack('=QIIIIIIIIHHBB6x', wc.wr_id, wc.status, wc.opcode, 0, wc.byte_len, 0, wc.qp_num, wc.src_qp,
                           wc.wc_flags, wc.pkey_index, wc.slid, wc.sl, wc.dlid_path_bits)
        attr = ctypes.create_string_buffer(32)
        lib = ctypes.CDLL('libibverbs.so.1', use_errno=True)
        lib.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
        lib.ibv_open_device.restype = ctypes.c_void_p
        context = ctypes.c_void_p(lib.ibv_open_device(ctypes.c_void_p(lib.ibv_get_device_list(None)[0])))
        status = lib.ibv_init_ah_from_wc(context, 1, c_wc, self.mr.read(40, r['off']), attr)
        lib.ibv_close_device(context)
        if status:
            raise OSError(ctypes.get_errno(), 'ibv_init_ah_from_wc')
        dgid, label, index, hops, tclass, is_global = struct.unpack('=16sIBBBx5xB2x', attr.raw)
        route = GlobalRoute(dgid=gid_of(dgid), flow_label=label, sgid_index=index, hop_limit=hops, traffic_class=tclass)
        return self.handle(AH(self.pd, attr=AHAttr(port_num=1, is_global=is_global, gr=route)))

    def do_group(self, r):
        # Without rdma_cm the program itself makes the interface listen to the group, by the membership of a socket.
        raw = socket.inet_pton(socket.AF_INET6, r['gid'])
        sock = self.groups.pop(r['gid'], None)
        if r['join']:
            v4 = raw[:12] == bytes(10) + b'\xff\xff'
            sock = self.groups[r['gid']] = socket.socket(socket.AF_INET if v4 else socket.AF_INET6, socket.SOCK_DGRAM)
            index = struct.pack('@i', socket.if_nametoindex('eth0'))
            if v4:
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, raw[12:] + bytes(4) + index)
            else:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, raw + index)
        self.attach(ATTACH if r['join'] else DETACH, raw)
        if not r['join']:
            sock.close()

    def attach(self, command, raw):
        # pyverbs has no call for it and does not tell the queue pair's handle; the kernel takes no other object's.
        for handle in range(64):
            try:
                os.write(self.ctx.cmd_fd, struct.pack('<IHH16sIHH', command, 8, 0, raw, handle, 0, 0))
                return
            except OSError as error:
                last = error
        raise last

    def do_window(self, r):
        self.mws.append(MW(self.pd, r['type']))
        return dict(mw=len(self.mws) - 1, rkey=self.mws[-1].rkey)

    def do_bind(self, r):
        mw, info = self.mws[r['mw']], MWBindInfo(self.mr, self.mr.buf + r['off'], r['len'], r['access'])
        if mw.type == e.IBV_MW_TYPE_1:
            self.qps[0].bind_mw(mw, MWBind(info, r['flags'], r['id']))
            return dict(rkey=mw.rkey)
        # pyverbs takes the key after the window's first one, so it can bind it once.
        w = SendWR(wr_id=r['id'], opcode=e.IBV_WR_BIND_MW, num_sge=0, sg=None, send_flags=r['flags'])
        w.set_bind_wr(mw, info)
        self.qps[0].post_send(w)
        return dict(rkey=w.rkey)

    def do_rereg(self, r):
        self.mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, None, 0, 0, r['access'])
        return dict(rkey=self.mr.rkey)

    def do_limit(self, r):
        self.srq.modify(SrqAttr(0, 0, r['limit']), e.IBV_SRQ_LIMIT)

    def do_event(self, r):
        fds = ['/proc/self/fd/' + fd for fd in os.listdir('/proc/self/fd')]
        events = [int(os.path.basename(fd)) for fd in fds if os.path.islink(fd) and 'infinibandevent' in os.readlink(fd)]
        if not select.select(events, [], [], r['ms'] / 1000)[0]:
            return dict(event=-1)
        event = self.ctx.get_async_event()
        event.ack()
        return dict(event=event.event_type)


def serve(sock):
    rx, tx = sock.makefile('rb'), sock.makefile('wb')
    end = None
    try:
        for line in rx:
            try:
                request = json.loads(line)
                end = end or End()
                answer = getattr(end, 'do_' + request['do'])(request) or {}
            except Exception as error:      # every fault of this end is the case's to judge
                answer = dict(error='%s: %s' % (type(error).__name__, error))
            tx.write(json.dumps(answer).encode() + b'\n')
            tx.flush()
    finally:
        if end:
            end.close()


def main():
    listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=16)
    while True:
        while True:     # collect the processes of the cases that ended
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break
        sock = listener.accept()[0]
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if os.fork() == 0:
            listener.close()
            try:
                serve(sock)
            finally:
                os._exit(0)     # the kernel takes queue pair and region away with the process
        sock.close()


if __name__ == '__main__':
    main()
