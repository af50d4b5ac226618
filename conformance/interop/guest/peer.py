#!/usr/bin/env python3
"""The guest's end of the verbs cases: does what it is told, over TCP, with pyverbs on rxe0.

    peer.py ADDRESS PORT

A connection is one end of one case, served by a process of its own. Requests and answers are JSON objects, one a line; a
request names what to do in "do", an answer is its result or {"error": text}. What the cases do and expect is decided by the
other side (conformance/interop/peer); here is no knowledge of any case. Numbers of operations, statuses, flags and access
rights are the verbs API's own. Offsets count from the start of the end's one memory region; bytes travel in base64.

    open     gid, size, access, inline    -> qpn, gid, addr, rkey
    connect  qpn, gid, sq_psn, rq_psn, mtu, rd_atomic, timeout, retry, rnr_retry, rnr_timer
    recv     wrs: [{id, sges: [[offset, length]...]}...]
    send     wrs: [{id, op, flags, sges, addr, rkey, imm, compare_add, swap}...]
    poll     count, ms                    -> wcs: [{id, status, op, len, flags, imm, qpn}...], at most count
    write    off, data
    read     off, len                     -> data
    state                                 -> state
    break                                 (to the error state)
"""
import base64
import json
import os
import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SendWR, SGE

RDMA = (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ)
ATOMIC = (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD)
REMOTE = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
DEPTH = 256


class End:
    def __init__(self):
        self.ctx = Context(name='rxe0')

    def do_open(self, r):
        self.pd, self.cq = PD(self.ctx), CQ(self.ctx, 2 * DEPTH)
        self.mr = MR(self.pd, r['size'], r['access'])
        self.gid = r['gid']
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | REMOTE
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=4, max_recv_sge=4, max_inline_data=r['inline'])
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0),
                     attr)   # in INIT
        return dict(qpn=self.qp.qp_num, gid=str(self.ctx.query_gid(1, self.gid)), addr=self.mr.buf, rkey=self.mr.rkey)

    def do_connect(self, r):
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | REMOTE
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=GID(r['gid']), sgid_index=self.gid, hop_limit=64))
        attr.dest_qp_num, attr.sq_psn, attr.rq_psn, attr.path_mtu = r['qpn'], r['sq_psn'], r['rq_psn'], r['mtu']
        attr.max_rd_atomic = attr.max_dest_rd_atomic = r['rd_atomic']
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = r['timeout'], r['retry'], r['rnr_retry'], r['rnr_timer']
        self.qp.to_rts(attr)

    def sges(self, wr):
        # pyverbs wants at least one element; one without length says the same as none.
        return [SGE(self.mr.buf + off, length, self.mr.lkey) for off, length in wr['sges'] or [(0, 0)]]

    def do_recv(self, r):
        for wr in r['wrs']:
            sges = self.sges(wr)
            self.qp.post_recv(RecvWR(wr_id=wr['id'], sg=sges, num_sge=len(sges)))

    def do_send(self, r):
        for wr in r['wrs']:
            sges = self.sges(wr)
            w = SendWR(wr_id=wr['id'], opcode=wr['op'], num_sge=len(sges), sg=sges, send_flags=wr['flags'],
                       imm_data=socket.htonl(wr['imm']))
            if wr['op'] in RDMA:
                w.set_wr_rdma(wr['rkey'], wr['addr'])
            elif wr['op'] in ATOMIC:
                w.set_wr_atomic(wr['rkey'], wr['addr'], wr['compare_add'], wr['swap'])
            self.qp.post_send(w)

    def do_poll(self, r):
        wcs, end = [], time.monotonic() + r['ms'] / 1000
        while len(wcs) < r['count']:
            got = self.cq.poll(1)[1]
            for wc in got or ():
                wcs.append(dict(id=wc.wr_id, status=wc.status, op=wc.opcode, len=wc.byte_len, flags=wc.wc_flags,
                                imm=socket.ntohl(wc.imm_data & 0xffffffff), qpn=wc.qp_num))
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
        return dict(state=self.qp.query(e.IBV_QP_STATE)[0].qp_state)

    def do_break(self, r):
        self.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)


def serve(sock):
    rx, tx = sock.makefile('rb'), sock.makefile('wb')
    end = None
    for line in rx:
        try:
            request = json.loads(line)
            end = end or End()
            answer = getattr(end, 'do_' + request['do'])(request) or {}
        except Exception as error:      # every fault of this end is the case's to judge
            answer = dict(error='%s: %s' % (type(error).__name__, error))
        tx.write(json.dumps(answer).encode() + b'\n')
        tx.flush()


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
