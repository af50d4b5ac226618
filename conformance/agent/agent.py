#!/usr/bin/env python3
"""The conformance suite's agent on rdma-core: does on a Linux RDMA device what the tester asks for, with pyverbs.

    agent.py --device rxe0 --tester ADDR [--tester ADDR...] [--listen ADDR:PORT] [--token WORD]

It needs Python 3.9 and pyverbs (Debian's package python3-pyverbs), and nothing of softroce's. The protocol is described in
docs/conformance-agent.md. A connection is a session, served by a process of its own: what it made goes with it.
"""
import argparse
import base64
import ctypes
import errno
import hmac
import ipaddress
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import RecvWR, SendWR, SGE

VERSION = 1
PORT = 4792
MAX_LINE, MAX_DATA, MAX_WAIT, MAX_POLL = 16 << 20, 8 << 20, 60000, 4096
MAX_MR, MAX_MEMORY = 1 << 30, 4 << 30
SESSIONS, IDLE = 8, 600

# Commands of the kernel's uverbs that pyverbs has no call for.
REG_MR, DEREG_MR, ATTACH, DETACH = 9, 13, 30, 31


def numbers(prefix, names, more=None):
    """Names of the verbs manual without their prefix, and their values as far as this pyverbs has them."""
    table = {n: getattr(e, prefix + n) for n in names.split() if hasattr(e, prefix + n)}
    return {**(more or {}), **table}


TYPES = dict(RC=2, UC=3, UD=4, GSI=1)
STATES = numbers('IBV_QPS_', 'RESET INIT RTR RTS SQD SQE ERR')
MTUS = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
ACCESS = numbers('IBV_ACCESS_', 'LOCAL_WRITE REMOTE_WRITE REMOTE_READ REMOTE_ATOMIC MW_BIND ZERO_BASED ON_DEMAND RELAXED_ORDERING',
                 dict(HUGETLB=1 << 7, FLUSH_GLOBAL=1 << 8, FLUSH_PERSISTENT=1 << 9))
FLAGS = numbers('IBV_SEND_', 'FENCE SIGNALED SOLICITED INLINE')
OPS = numbers('IBV_WR_', 'SEND SEND_WITH_IMM SEND_WITH_INV RDMA_WRITE RDMA_WRITE_WITH_IMM RDMA_READ ATOMIC_CMP_AND_SWP '
              'ATOMIC_FETCH_AND_ADD LOCAL_INV BIND_MW', dict(FLUSH=14, ATOMIC_WRITE=15))
EVENTS = {v: n for n, v in numbers('IBV_EVENT_', 'CQ_ERR QP_FATAL QP_REQ_ERR QP_ACCESS_ERR COMM_EST SQ_DRAINED PATH_MIG '
          'PATH_MIG_ERR DEVICE_FATAL PORT_ACTIVE PORT_ERR LID_CHANGE PKEY_CHANGE SM_CHANGE SRQ_ERR SRQ_LIMIT_REACHED '
          'QP_LAST_WQE_REACHED CLIENT_REREGISTER GID_CHANGE').items()}
QP_EVENTS = {'QP_FATAL', 'QP_REQ_ERR', 'QP_ACCESS_ERR', 'COMM_EST', 'SQ_DRAINED', 'PATH_MIG', 'PATH_MIG_ERR', 'QP_LAST_WQE_REACHED'}
STATUSES = {v: n for n, v in numbers('IBV_WC_', 'SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR '
            'MW_BIND_ERR BAD_RESP_ERR LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR RNR_RETRY_EXC_ERR '
            'LOC_RDD_VIOL_ERR REM_INV_RD_REQ_ERR REM_ABORT_ERR FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR').items()}
COMPLETED = {v: n for n, v in numbers('IBV_WC_', 'SEND RDMA_WRITE RDMA_READ COMP_SWAP FETCH_ADD BIND_MW LOCAL_INV RECV '
             'RECV_RDMA_WITH_IMM', dict(FLUSH=8, ATOMIC_WRITE=9)).items()}
WITH_LENGTH = {'RDMA_READ', 'COMP_SWAP', 'FETCH_ADD', 'RECV', 'RECV_RDMA_WITH_IMM'}

# What a request may have, and of which type.
PATH = dict(addr=str, gid_index=int, hop_limit=int, tclass=int)
SGES = [dict(addr=int, length=int, lkey=int)]
BIND = dict(mr=int, addr=int, length=int, access=[str], rkey=int)
SEND = dict(id=int, op=str, flags=[str], sges=SGES, inline=str, imm=int, inv=int, addr=int, rkey=int, compare_add=int, swap=int,
            ah=int, remote_qpn=int, remote_qkey=int, bind=BIND, mw=int)
ATTRS = dict(state=str, cur_state=str, path_mtu=int, qkey=int, rq_psn=int, sq_psn=int, dest_qpn=int, access=[str], pkey_index=int,
             port=int, path=PATH, timeout=int, retry_cnt=int, rnr_retry=int, min_rnr_timer=int, max_rd_atomic=int,
             max_dest_rd_atomic=int, en_sqd_async_notify=bool)
REQUEST = dict(do=str, version=int, token=str, pd=int, mr=int, mw=int, cq=int, srq=int, qp=int, ah=int, type=str, length=int,
               access=[str], iova=int, off=int, data=str, cqe=int, channel=bool, solicited=bool, n=int, ms=int, send_cq=int,
               recv_cq=int, send_wrs=int, recv_wrs=int, send_sges=int, recv_sges=int, inline=int, sig_all=bool, limit=int,
               attrs=ATTRS, sends=[SEND], recvs=[dict(id=int, sges=SGES)], bind=BIND, id=int, gid=str, path=PATH)

# Attributes of a queue pair that are numbers: pyverbs's name, and the bit of the mask.
NUMBERS = dict(qkey=('qkey', e.IBV_QP_QKEY), rq_psn=('rq_psn', e.IBV_QP_RQ_PSN), sq_psn=('sq_psn', e.IBV_QP_SQ_PSN),
               dest_qpn=('dest_qp_num', e.IBV_QP_DEST_QPN), pkey_index=('pkey_index', e.IBV_QP_PKEY_INDEX),
               port=('port_num', e.IBV_QP_PORT), timeout=('timeout', e.IBV_QP_TIMEOUT), retry_cnt=('retry_cnt', e.IBV_QP_RETRY_CNT),
               rnr_retry=('rnr_retry', e.IBV_QP_RNR_RETRY), min_rnr_timer=('min_rnr_timer', e.IBV_QP_MIN_RNR_TIMER),
               max_rd_atomic=('max_rd_atomic', e.IBV_QP_MAX_QP_RD_ATOMIC),
               max_dest_rd_atomic=('max_dest_rd_atomic', e.IBV_QP_MAX_DEST_RD_ATOMIC),
               en_sqd_async_notify=('en_sqd_async_notify', e.IBV_QP_EN_SQD_ASYNC_NOTIFY))


class Refused(Exception):
    """What the agent itself refuses; code is an errno where the verbs would have one."""

    def __init__(self, text, code=0):
        super().__init__(text)
        self.code = code


class Gone(Exception):
    """The tester has gone."""


def invalid(text):
    return Refused(text, errno.EINVAL)


def value(table, kind, name):
    if name not in table:
        raise invalid('there is no %s %r' % (kind, name))
    return table[name]


def bits(table, kind, names):
    total = 0
    for name in names or ():
        total |= value(table, kind, name)
    return total


def check(got, want, at):
    """Refuses what is not of the type that a field has, and fields that there are not."""
    if isinstance(want, list):
        if not isinstance(got, list):
            raise Refused('%s is no list' % at)
        for item in got:
            check(item, want[0], at)
    elif isinstance(want, dict):
        if not isinstance(got, dict):
            raise Refused('%s is no object' % at)
        for name, item in got.items():
            if name not in want:
                raise Refused('unknown field %r' % name)
            if item is not None:
                check(item, want[name], name)
    elif type(got) is not want:
        raise Refused('%s is no %s' % (at, want.__name__))


def raw_gid(text):
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        raise invalid('%r is no IP address' % text)
    if ip.version == 4:
        return bytes(10) + b'\xff\xff' + ip.packed
    if '%' in text:
        raise invalid('%r has a zone' % text)
    return ip.packed


def gid_of(raw):
    return GID(':'.join('%02x%02x' % (raw[i], raw[i + 1]) for i in range(0, 16, 2)))


def address_of(text):
    ip = ipaddress.IPv6Address(str(text))
    return str(ip.ipv4_mapped or ip)


def unb64(text):
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise Refused('no base64')


def words(obj):
    """The machine words of an object of pyverbs. Among them is the address of the verbs object behind it, which pyverbs does
    not tell."""
    size = type(obj).__basicsize__ // 8
    return struct.unpack('%dQ' % size, ctypes.string_at(id(obj), size * 8))


def behind(obj, offset, pattern):
    """The address of the verbs object behind one of pyverbs: it has these bytes at this offset."""
    with open('/proc/self/mem', 'rb', 0) as memory:
        for word in words(obj):
            try:
                if os.pread(memory.fileno(), len(pattern), word + offset) == pattern:
                    return word
            except (OSError, OverflowError):     # no address
                continue
    raise Refused('this pyverbs keeps its objects in another way')


def event_fds():
    """The descriptors of this process that deliver events of a device."""
    found = set()
    for fd in os.listdir('/proc/self/fd'):
        try:
            if 'infinibandevent' in os.readlink('/proc/self/fd/' + fd):
                found.add(int(fd))
        except OSError:     # that of the listing itself
            pass
    return found


class Region:
    """Memory of the agent's own, registered; with an iova by the kernel's own call, as pyverbs has none."""

    def __init__(self, session, pd, length, access, iova=None):
        self.length, self.session, self.pd, self.mr = length, session, pd, None
        self.memory = mmap.mmap(-1, length)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        if iova is None:
            self.mr = MR(pd, length, access, address=start)
            self.lkey, self.rkey, self.addr = self.mr.lkey, self.mr.rkey, 0 if access & ACCESS['ZERO_BASED'] else start
            return
        out = ctypes.create_string_buffer(12)
        session.command(REG_MR, struct.pack('<QQQQII', ctypes.addressof(out), start, length, iova, pd.handle, access), 12)
        self.handle, self.lkey, self.rkey = struct.unpack('<III', out.raw)
        self.addr = iova

    def rereg(self, access):
        if self.mr is None:
            raise Refused('pyverbs cannot re-register a region with an iova')
        self.mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, None, 0, 0, access)
        self.lkey, self.rkey = self.mr.lkey, self.mr.rkey

    def close(self):
        if self.mr is None:
            self.session.command(DEREG_MR, struct.pack('<I', self.handle))
        else:
            self.mr.close()


class Session:
    def __init__(self, device, sock):
        self.device, self.sock = device, sock
        before = event_fds()
        self.ctx = Context(name=device)
        self.async_fd = (event_fds() - before).pop()
        self.verbs = ctypes.CDLL('libibverbs.so.1')
        self.last = 0
        self.clear()

    def clear(self):
        self.objects = {kind: {} for kind in ('pd', 'mr', 'mw', 'cq', 'srq', 'qp', 'ah')}
        self.uses = {}      # kind and handle of an object: kinds and handles of what it is made of
        self.keys, self.channels, self.groups, self.memory = {}, {}, {}, 0

    # Handles.

    def add(self, kind, obj, *uses):
        self.last += 1
        self.objects[kind][self.last] = obj
        self.uses[kind, self.last] = uses
        return self.last

    def find(self, kind, r, field=None):
        handle = r.get(field or kind, 0)
        if handle not in self.objects[kind]:
            raise Refused('this session has no %s %d' % (kind, handle))
        return self.objects[kind][handle]

    def command(self, number, body, answer=0):
        """A command of the kernel's uverbs; its answer goes where the body says."""
        os.write(self.ctx.cmd_fd, struct.pack('<IHH', number, (8 + len(body)) // 4, answer // 4) + body)

    # The device.

    def do_hello(self, r):
        at = self.ctx.query_device()
        probe = Probe(self)
        return dict(version=VERSION, agent='softroce agent.py, kernel ' + os.uname().release, device=self.device, gids=self.gids(),
                    features=probe.features(at), max_rd_atomic=at.max_qp_rd_atom, max_sge=at.max_sge, max_inline=probe.inline())

    def port_file(self, name):
        with open('/sys/class/infiniband/%s/ports/1/%s' % (self.device, name)) as f:
            return f.read().strip()

    def gids(self):
        found = []
        for i in range(256):
            try:
                if self.port_file('gid_attrs/types/%d' % i) == 'RoCE v2':
                    found.append(dict(index=i, addr=address_of(self.port_file('gids/%d' % i))))
            except OSError:     # an empty entry, or past the end
                continue
        return found

    def do_counters(self, r):
        counters = {}
        for folder in 'counters', 'hw_counters':
            try:
                names = os.listdir('/sys/class/infiniband/%s/ports/1/%s' % (self.device, folder))
            except OSError:
                continue
            for name in names:
                text = self.port_file(folder + '/' + name)
                if name != 'lifespan' and text.isdigit():
                    counters[name] = int(text)
        return dict(counters=counters)

    def wait(self, r, fd, ready=lambda: False):
        """Waits until ready, or fd is readable; False when the time is over."""
        end, nap = time.monotonic() + r.get('ms', 0) / 1000, 0.00005
        while not ready():
            left = end - time.monotonic()
            if left <= 0:
                return fd is not None and bool(select.select([fd], [], [], 0)[0])
            if fd is None:
                time.sleep(min(nap, left))
                nap = min(nap * 1.25, 0.001)
                if nap < 0.001:
                    continue
            got = select.select([self.sock] + ([fd] if fd is not None else []), [], [], min(left, 1) if fd is not None else 0)[0]
            if self.sock in got and not self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                raise Gone
            if fd in got:
                return True
            if got:     # a request that waits behind this one
                time.sleep(min(0.001, left))
        return True

    def do_async(self, r):
        events = []
        while len(events) < MAX_POLL and self.wait({} if events else r, self.async_fd):
            element, kind, _ = struct.unpack('=QII', os.read(self.async_fd, 16))
            event = ctypes.create_string_buffer(struct.pack('=QII', element, kind, 0))
            name = EVENTS.get(kind, 'EVENT_%d' % kind)
            events.append(dict(type=name, **self.owner(element, name)))
            self.verbs.ibv_ack_async_event(event)
        return dict(events=events)

    def owner(self, element, event):
        """The handle of the object that an event is about; those of the port and the device have none."""
        kind = 'cq' if event == 'CQ_ERR' else 'srq' if event.startswith('SRQ_') else 'qp'
        if kind == 'qp' and event not in QP_EVENTS:
            return {}
        return {kind: handle for handle, obj in self.objects[kind].items() if element in words(obj)}

    # Memory.

    def do_pd(self, r):
        return dict(pd=self.add('pd', PD(self.ctx)))

    def do_mr(self, r):
        pd, length, access = self.find('pd', r), r.get('length', 0), bits(ACCESS, 'access flag', r.get('access'))
        if length <= 0:
            raise invalid('length %d' % length)
        if length > MAX_MR or length > MAX_MEMORY - self.memory:
            raise Refused('more memory than the agent allows', errno.ENOMEM)
        if not 0 <= (r.get('iova') or 0) < 1 << 64:
            raise invalid('iova %d' % r['iova'])
        mr = Region(self, pd, length, access, r.get('iova'))
        self.memory += length
        return dict(mr=self.add('mr', mr, ('pd', r['pd'])), addr=mr.addr, lkey=mr.lkey, rkey=mr.rkey)

    def do_rereg(self, r):
        mr = self.find('mr', r)
        mr.rereg(bits(ACCESS, 'access flag', r.get('access')))
        return dict(lkey=mr.lkey, rkey=mr.rkey)

    def piece(self, r, n):
        mr, off = self.find('mr', r), r.get('off', 0)
        if n > MAX_DATA:
            raise invalid('%d bytes at once, at most %d' % (n, MAX_DATA))
        if off < 0 or n < 0 or off + n > mr.length:
            raise invalid('%d bytes at %d of a region of %d' % (n, off, mr.length))
        return mr.memory, off, off + n

    def do_write(self, r):
        data = unb64(r.get('data', ''))
        memory, begin, end = self.piece(r, len(data))
        memory[begin:end] = data

    def do_read(self, r):
        memory, begin, end = self.piece(r, r.get('length', 0))
        return dict(data=base64.b64encode(memory[begin:end]).decode())

    def do_mw(self, r):
        mw = MW(self.find('pd', r), value({'1': e.IBV_MW_TYPE_1, '2': e.IBV_MW_TYPE_2}, 'window type', r.get('type')))
        handle = self.add('mw', mw, ('pd', r['pd']))
        self.keys[handle] = mw.rkey
        return dict(mw=handle, rkey=mw.rkey)

    def bind_info(self, b):
        if b is None:
            raise Refused('a bind without what it is to')
        if b.get('mr'):
            mr = self.find('mr', b).mr
        elif b.get('length', 0) == 0 and self.objects['mr']:
            mr = next(iter(self.objects['mr'].values())).mr     # of no length: pyverbs wants a region all the same
        else:
            raise Refused('a bind without a region')
        if mr is None:
            raise Refused('pyverbs cannot bind to a region with an iova')
        return MWBindInfo(mr, b.get('addr', 0), b.get('length', 0), bits(ACCESS, 'access flag', b.get('access')))

    def do_bind(self, r):
        qp, mw = self.find('qp', r), self.find('mw', r)
        if mw.type != e.IBV_MW_TYPE_1:
            raise invalid('a window of type 2')
        qp.bind_mw(mw, MWBind(self.bind_info(r.get('bind')), e.IBV_SEND_SIGNALED, r.get('id', 0)))
        self.keys[r['mw']] = mw.rkey
        return dict(rkey=mw.rkey)

    # Queues.

    def do_cq(self, r):
        channel, fd = None, None
        if r.get('channel'):
            before = event_fds()
            channel = CompChannel(self.ctx)
            fd = (event_fds() - before).pop()
        try:
            cq = CQ(self.ctx, r.get('cqe') or 256, None, channel, 0)
        except Exception:
            if channel is not None:
                channel.close()
            raise
        handle = self.add('cq', cq)
        if channel is not None:
            self.channels[handle] = (channel, fd)
        return dict(cq=handle)

    def do_arm(self, r):
        self.find('cq', r).req_notify(r.get('solicited', False))

    def do_event(self, r):
        cq = self.find('cq', r)
        if r['cq'] not in self.channels:
            raise Refused('cq %d was made without a channel' % r['cq'])
        channel, fd = self.channels[r['cq']]
        if not self.wait(r, fd):
            return dict(event=False)
        channel.get_cq_event(cq)
        cq.ack_events(1)
        return dict(event=True)

    def do_poll(self, r):
        cq, n, wcs = self.find('cq', r), r.get('n', 0), []
        datagrams = {qp.qp_num for qp in self.objects['qp'].values() if qp.qp_type == TYPES['UD']}
        if not 0 <= n <= MAX_POLL:
            raise invalid('%d completions, at most %d' % (n, MAX_POLL))

        def ready():
            while len(wcs) < max(n, 1):
                got = cq.poll(1)[1]
                if not got:
                    return False
                wcs.append(completion(got[0], got[0].qp_num in datagrams))
            return True
        self.wait(r, None, ready)
        return dict(wcs=wcs)

    def do_srq(self, r):
        attr = SrqAttr(r.get('recv_wrs') or 64, r.get('recv_sges') or 4, 0)
        return dict(srq=self.add('srq', SRQ(self.find('pd', r), SrqInitAttr(attr)), ('pd', r['pd'])))

    def do_srq_limit(self, r):
        self.find('srq', r).modify(SrqAttr(0, 0, r.get('limit', 0)), e.IBV_SRQ_LIMIT)

    def do_qp(self, r):
        kind, pd = value(TYPES, 'queue pair type', r.get('type')), self.find('pd', r)
        scq, rcq = self.find('cq', r, 'send_cq'), self.find('cq', r, 'recv_cq')
        srq = self.find('srq', r) if r.get('srq') else None
        for name in 'send_wrs', 'recv_wrs', 'send_sges', 'recv_sges', 'inline':
            if not 0 <= r.get(name, 0) < 1 << 32:
                raise invalid('%s %d' % (name, r[name]))
        cap = QPCap(max_send_wr=r.get('send_wrs') or 64, max_recv_wr=0 if srq else r.get('recv_wrs') or 64,
                    max_send_sge=r.get('send_sges') or 4, max_recv_sge=0 if srq else r.get('recv_sges') or 4,
                    max_inline_data=r.get('inline', 0))
        qp = make_qp(self.ctx, pd, kind, scq, rcq, srq, cap, int(r.get('sig_all', False)))
        uses = [('pd', r['pd']), ('cq', r['send_cq']), ('cq', r['recv_cq'])] + ([('srq', r['srq'])] if srq else [])
        return dict(qp=self.add('qp', qp, *uses), qpn=qp.qp_num)

    def path(self, p):
        if p is None:
            raise invalid('no path')
        route = GlobalRoute(dgid=gid_of(raw_gid(p.get('addr', ''))), sgid_index=p.get('gid_index', 0), hop_limit=p.get('hop_limit') or 64,
                            traffic_class=p.get('tclass', 0))
        return AHAttr(port_num=1, is_global=1, gr=route)

    def do_modify(self, r):
        qp, a, attr, mask = self.find('qp', r), r.get('attrs') or {}, QPAttr(), 0
        for name, item in a.items():
            if item is None:
                continue
            if name in NUMBERS:
                field, bit = NUMBERS[name]
                setattr(attr, field, item)
                mask |= bit
        if a.get('state') is not None:
            attr.qp_state, mask = value(STATES, 'state', a['state']), mask | e.IBV_QP_STATE
        if a.get('cur_state') is not None:
            attr.cur_qp_state, mask = value(STATES, 'state', a['cur_state']), mask | e.IBV_QP_CUR_STATE
        if a.get('path_mtu') is not None:
            attr.path_mtu, mask = value(MTUS, 'path MTU', a['path_mtu']), mask | e.IBV_QP_PATH_MTU
        if a.get('access') is not None:
            attr.qp_access_flags, mask = bits(ACCESS, 'access flag', a['access']), mask | e.IBV_QP_ACCESS_FLAGS
        if a.get('path') is not None:
            attr.ah_attr, mask = self.path(a['path']), mask | e.IBV_QP_AV
        qp.modify(attr, mask)

    def do_query(self, r):
        attr = self.find('qp', r).query(0x1fffff)[0]
        states, route = {v: n for n, v in STATES.items()}, attr.ah_attr
        a = {name: getattr(attr, field) for name, (field, _) in NUMBERS.items()}
        a.update(state=states.get(attr.qp_state, '?'), cur_state=states.get(attr.cur_qp_state, '?'),
                 path_mtu={v: n for n, v in MTUS.items()}.get(attr.path_mtu, 0), en_sqd_async_notify=bool(attr.en_sqd_async_notify),
                 access=[n for n, v in ACCESS.items() if attr.qp_access_flags & v],
                 path=dict(addr=address_of(route.dgid), gid_index=route.sgid_index, hop_limit=route.hop_limit,
                           tclass=route.traffic_class))
        return dict(attrs=a)

    def do_ah(self, r):
        return dict(ah=self.add('ah', AH(self.find('pd', r), attr=self.path(r.get('path'))), ('pd', r['pd'])))

    # Requests.

    def elements(self, sges):
        # pyverbs wants at least one element; one without length says the same as none.
        return [SGE(s.get('addr', 0), s.get('length', 0), s.get('lkey', 0)) for s in sges or [{}]]

    def do_send(self, r):
        qp, answer = self.find('qp', r), {}
        # All of them are made before the first is posted, so that a name that there is not posts nothing.
        ready = [self.send_wr(qp, r['qp'], w) for w in r.get('sends') or ()]
        for i, post in enumerate(ready):
            try:
                answer.update(post() or {})
            except Exception as error:
                raise Refused('request %d: %s' % (i, error), code_of(error))
        return dict(posted=len(ready), **answer)

    def send_wr(self, qp, handle, w):
        """What posts a request."""
        op, flags = value(OPS, 'operation', w.get('op')), bits(FLAGS, 'flag', w.get('flags'))
        if op == OPS['BIND_MW']:
            return self.bind_wr(qp, w, flags)
        sges, keep = self.elements(w.get('sges')), None
        if w.get('inline') and flags & FLAGS['INLINE'] and not w.get('sges'):
            data = unb64(w['inline'])
            keep = ctypes.create_string_buffer(data, len(data))
            sges = [SGE(ctypes.addressof(keep), len(data), 0)]
        inv = op in (OPS['LOCAL_INV'], OPS['SEND_WITH_INV'])
        wr = SendWR(wr_id=w.get('id', 0), opcode=op, num_sge=len(sges), sg=sges, send_flags=flags,
                    imm_data=w.get('inv', 0) if inv else socket.htonl(w.get('imm', 0)))
        # The three share their place in the request, and a datagram's is followed as a pointer.
        if qp.qp_type == TYPES['UD']:
            if not w.get('ah'):
                raise invalid('the request has no address handle')
            wr.set_wr_ud(self.find('ah', w), w.get('remote_qpn', 0), w.get('remote_qkey', 0))
        elif w['op'].startswith('RDMA') or w['op'] in ('FLUSH', 'ATOMIC_WRITE'):
            wr.set_wr_rdma(w.get('rkey', 0), w.get('addr', 0))
        elif w['op'].startswith('ATOMIC'):
            wr.set_wr_atomic(w.get('rkey', 0), w.get('addr', 0), w.get('compare_add', 0), w.get('swap', 0))
        return lambda: (qp.post_send(wr), keep)[0]

    def bind_wr(self, qp, w, flags):
        mw, b = self.find('mw', w), w.get('bind')
        info, old = self.bind_info(b), self.keys[w['mw']]
        key = b.get('rkey') or (old & ~0xff | (old + 1) & 0xff)
        if mw.type == e.IBV_MW_TYPE_1:
            raise invalid('a window of type 1')
        if not isinstance(qp, QPEx):
            raise Refused('this device has no extended queue pairs, which windows of type 2 need here')

        def post():
            qp.wr_start()
            qp.wr_id, qp.wr_flags = w.get('id', 0), flags
            qp.wr_bind_mw(mw, key, info)
            qp.wr_complete()
            # A program is to note the new key in the window itself; pyverbs does not, and the next bind would name the old one.
            if mw.rkey != key:
                at = behind(mw, 16, struct.pack('=III', mw.rkey, mw.handle, mw.type))
                ctypes.memmove(at + 16, struct.pack('=I', key), 4)
            self.keys[w['mw']] = key
            return dict(rkey=key)
        return post

    def do_recv(self, r):
        queue = self.find('srq', r) if r.get('srq') else self.find('qp', r)
        wrs = [(w.get('id', 0), self.elements(w.get('sges'))) for w in r.get('recvs') or ()]
        for i, (mark, sges) in enumerate(wrs):
            try:
                queue.post_recv(RecvWR(wr_id=mark, sg=sges, num_sge=len(sges)))
            except Exception as error:
                raise Refused('request %d: %s' % (i, error), code_of(error))
        return dict(posted=len(wrs))

    # Multicast.

    def do_attach(self, r):
        qp, raw = self.find('qp', r), raw_gid(r.get('gid', ''))
        self.group(ATTACH, qp, raw)
        if (r['qp'], raw) not in self.groups:
            try:
                self.groups[r['qp'], raw] = self.join(raw)
            except OSError:
                self.group(DETACH, qp, raw)
                raise

    def do_detach(self, r):
        qp, raw = self.find('qp', r), raw_gid(r.get('gid', ''))
        self.group(DETACH, qp, raw)
        sock = self.groups.pop((r['qp'], raw), None)
        if sock:
            sock.close()

    def group(self, number, qp, raw):
        # pyverbs has no call for it and does not tell the queue pair's handle, which stands before number, state and type.
        at = behind(qp, 52, struct.pack('=III', qp.qp_num, qp.qp_state, qp.qp_type))
        self.command(number, struct.pack('<16sIHH', raw, *struct.unpack('=I', ctypes.string_at(at + 48, 4)), 0, 0))

    def join(self, raw):
        """Without rdma_cm the program itself makes the interface listen to the group, by the membership of a socket."""
        v4 = raw[:12] == bytes(10) + b'\xff\xff'
        sock = socket.socket(socket.AF_INET if v4 else socket.AF_INET6, socket.SOCK_DGRAM)
        index = struct.pack('@i', socket.if_nametoindex(self.port_file('gid_attrs/ndevs/0')))
        if v4:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, raw[12:] + bytes(4) + index)
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, raw + index)
        return sock

    # The end of objects.

    def do_destroy(self, r):
        named = [kind for kind in self.objects if r.get(kind)]
        if len(named) != 1:
            raise Refused('name one object')
        self.drop(named[0], r)

    def drop(self, kind, r):
        obj, handle = self.find(kind, r), r[kind]
        # pyverbs would destroy what uses the object, too.
        if any((kind, handle) in used for used in self.uses.values()) or any(qp == handle for qp, _ in self.groups if kind == 'qp'):
            raise Refused('the %s is in use' % kind, errno.EBUSY)
        obj.close()
        if kind == 'mr':
            self.memory -= obj.length
        if handle in self.channels:
            self.channels.pop(handle)[0].close()
        del self.objects[kind][handle], self.uses[kind, handle]

    def do_reset(self, r=None):
        # Windows first: the kernel waits long for a queue pair that goes while a window of type 2 is bound to it.
        failed = None
        for qp, raw in list(self.groups):
            self.do_detach(dict(qp=qp, gid=str(ipaddress.IPv6Address(raw))))
        for kind in 'mw', 'qp', 'ah', 'srq', 'cq', 'mr', 'pd':
            for handle in list(self.objects[kind]):
                try:
                    self.drop(kind, {kind: handle})
                except Exception as error:
                    failed = failed or error
        if failed:
            raise failed


def make_qp(ctx, pd, kind, scq, rcq, srq, cap, sig_all):
    """A queue pair; an extended one where there is such a thing, which can bind a window of type 2 more than once."""
    if kind in (TYPES['RC'], TYPES['UC']):
        ops = e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_BIND_MW
        mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        try:
            return QPEx(ctx, QPInitAttrEx(qp_type=kind, scq=scq, rcq=rcq, srq=srq, cap=cap, sq_sig_all=sig_all, comp_mask=mask, pd=pd,
                                          send_ops_flags=ops))
        except Exception:
            pass
    return QP(pd, QPInitAttr(qp_type=kind, scq=scq, rcq=rcq, srq=srq, cap=cap, sq_sig_all=sig_all))


def completion(wc, datagram):
    """A completion without what is not valid in it, whatever a driver leaves there."""
    c = dict(id=wc.wr_id, status=STATUSES.get(wc.status, 'STATUS_%d' % wc.status), qpn=wc.qp_num)
    if wc.status != e.IBV_WC_SUCCESS:
        return c
    c['op'] = COMPLETED.get(wc.opcode, 'OPCODE_%d' % wc.opcode)
    if c['op'] in WITH_LENGTH:
        c['byte_len'] = wc.byte_len
    if not c['op'].startswith('RECV'):
        return c
    word = wc.imm_data & 0xffffffff
    if wc.wc_flags & e.IBV_WC_WITH_IMM:
        c.update(with_imm=True, imm=socket.ntohl(word))
    if wc.wc_flags & e.IBV_WC_WITH_INV:
        c.update(with_inv=True, inv=word)
    if datagram:
        c.update(grh=bool(wc.wc_flags & e.IBV_WC_GRH), src_qp=wc.src_qp)
    return c


class Probe:
    """Finds out what a device has by trying it, with objects of its own."""

    def __init__(self, session):
        self.s, self.ctx = session, session.ctx
        self.pd, self.cq = PD(self.ctx), CQ(self.ctx, 16)
        self.gid = session.gids()[0] if session.gids() else dict(index=0, addr='::1')

    def qp(self, kind, inline=0):
        cap = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1, max_inline_data=inline)
        return make_qp(self.ctx, self.pd, kind, self.cq, self.cq, None, cap, 1)

    def features(self, at):
        found = []
        for name, attempt in (
                ('uc', lambda: self.qp(TYPES['UC']).close()), ('ud', lambda: self.qp(TYPES['UD']).close()),
                ('srq', lambda: SRQ(self.pd, SrqInitAttr(SrqAttr(4, 1, 0))).close()),
                ('mw1', lambda: MW(self.pd, e.IBV_MW_TYPE_1).close()), ('mw2', self.mw2),
                ('inv', lambda: at.device_cap_flags & e.IBV_DEVICE_MEM_MGT_EXTENSIONS or 1 / 0), ('zero_based', self.zero_based),
                ('iova', lambda: Region(self.s, self.pd, 4096, 1, 1 << 40).close()), ('rereg', self.rereg),
                ('multicast', lambda: 1 / at.max_mcast_grp), ('qp1', lambda: os.stat('/sys/module/ib_cm')), ('events', lambda: None),
                ('counters', lambda: 1 / len(self.s.do_counters({})['counters'])), ('sqd', self.sqd), ('rd_atomic_0', self.empty)):
            try:
                attempt()
            except Exception:
                continue
            found.append(name)
        return found

    def inline(self):
        for n in 1024, 512, 256, 128, 64, 32:
            try:
                self.qp(TYPES['RC'], n).close()
                return n
            except Exception:
                continue
        return 0

    def mw2(self):
        MW(self.pd, e.IBV_MW_TYPE_2).close()
        qp = self.qp(TYPES['RC'])
        found = isinstance(qp, QPEx)
        qp.close()
        if not found:
            raise Refused('no extended queue pairs')

    def rereg(self):
        mr = Region(self.s, self.pd, 4096, 1)
        try:
            mr.rereg(3)
        finally:
            mr.close()

    def datagrams(self):
        """A datagram queue pair in RTS."""
        qp, attr = self.qp(TYPES['UD']), QPAttr(port_num=1)
        attr.qkey = 1
        qp.to_rts(attr)
        return qp

    def sqd(self):
        qp = self.datagrams()
        try:
            qp.modify(QPAttr(qp_state=e.IBV_QPS_SQD), e.IBV_QP_STATE)
        finally:
            qp.close()

    def zero_based(self):
        """Sends from address 0 of a region, to itself: a device that does not count from 0 fails the request."""
        qp, mr = self.datagrams(), Region(self.s, self.pd, 4096, ACCESS['LOCAL_WRITE'] | ACCESS['ZERO_BASED'])
        ah = AH(self.pd, attr=self.s.path(dict(addr=self.gid['addr'], gid_index=self.gid['index'])))
        try:
            wr = SendWR(wr_id=1, opcode=OPS['SEND'], num_sge=1, sg=[SGE(0, 8, mr.lkey)], send_flags=FLAGS['SIGNALED'])
            wr.set_wr_ud(ah, qp.qp_num, 1)
            qp.post_send(wr)
            end, got = time.monotonic() + 1, None
            while not got and time.monotonic() < end:
                got = self.cq.poll(1)[1]
            if not got or got[0].status != e.IBV_WC_SUCCESS:
                raise Refused('not from 0')
        finally:
            qp.close()
            ah.close()
            mr.close()

    def empty(self):
        """A responder without READs and atomics."""
        qp, attr = self.qp(TYPES['RC']), QPAttr(port_num=1)
        attr.ah_attr = self.s.path(dict(addr=self.gid['addr'], gid_index=self.gid['index']))
        attr.dest_qp_num, attr.path_mtu, attr.max_dest_rd_atomic, attr.min_rnr_timer = qp.qp_num, MTUS[1024], 0, 12
        try:
            qp.to_rtr(attr)
        finally:
            qp.close()


# The connection.

def code_of(error):
    """The errno of an error, 0 where it has none."""
    if isinstance(error, Refused):
        return error.code
    if isinstance(error, OverflowError):     # a number that the verbs have no room for
        return errno.EINVAL
    code = getattr(error, 'error_code', None)     # pyverbs's
    if code is None:
        code = error.errno if isinstance(error, OSError) else 0
    return abs(code or 0)


def errno_name(code):
    return 'EOPNOTSUPP' if code == errno.EOPNOTSUPP else errno.errorcode.get(code, str(code))


class Stranger(Exception):
    """Ends a connection: it did not say hello, or not rightly."""


class Connection:
    def __init__(self, sock, device, token):
        self.session, self.token, self.greeted = Session(device, sock), token, False

    def answer(self, line):
        if len(line) >= MAX_LINE:
            raise Stranger('a line of more than %d bytes' % MAX_LINE)
        try:
            r = json.loads(line)
        except ValueError as error:
            raise Refused('no JSON: %s' % error)
        check(r, REQUEST, 'the line')
        r = {name: item for name, item in r.items() if item is not None}
        do = r.get('do', '')
        if do == 'hello':
            if r.get('version', 0) != VERSION:
                raise Stranger('say hello first, with this agent\'s version: this is version %d, asked for %d' % (VERSION, r.get('version', 0)))
            self.greeted = self.greeted or hmac.compare_digest(r.get('token', '').encode(), self.token.encode())
        if not self.greeted:
            raise Stranger('say hello first, with this agent\'s version and token')
        if not 0 <= r.get('ms', 0) <= MAX_WAIT:
            raise invalid('ms is %d, must be 0 to %d' % (r['ms'], MAX_WAIT))
        method = getattr(Session, 'do_' + do, None)
        if method is None:
            raise Refused('there is no request %r' % do)
        return method(self.session, r) or {}

    def line(self, line):
        """The answer to a line, and whether the connection goes on."""
        try:
            return self.answer(line), True
        except Stranger as error:
            return dict(error=str(error)), False
        except Gone:
            raise
        except Exception as error:      # whatever pyverbs makes of a request is its answer
            code = code_of(error)
            answer = dict(error=str(error) or type(error).__name__)
            if code:
                answer['errno'] = errno_name(code)
            return answer, True


def serve(sock, device, token):
    sock.settimeout(IDLE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lines = sock.makefile('rb')
    try:
        connection = Connection(sock, device, token)
    except Exception as error:
        sock.sendall(json.dumps(dict(error='the device cannot be opened: %s' % error)).encode() + b'\n')
        raise
    try:
        while True:
            line = lines.readline(MAX_LINE)
            if not line:
                break
            answer, more = connection.line(line)
            sock.sendall(json.dumps(answer).encode() + b'\n')
            if not more:
                break
    except (Gone, OSError):     # the tester went, or was idle for long
        pass
    finally:
        connection.session.do_reset()


def collect(children):
    """Takes in the sessions that ended."""
    while children:
        pid = os.waitpid(-1, os.WNOHANG)[0]
        if pid == 0:
            return
        children.discard(pid)


def network(text):
    return ipaddress.ip_network(text, strict=False)


def admitted(ip, testers):
    ip = getattr(ip, 'ipv4_mapped', None) or ip
    return any(ip in net for net in testers if net.version == ip.version)


def listen(text):
    host, _, port = text.rpartition(':')
    host = host.strip('[]') or '0.0.0.0'
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    return socket.create_server((host, int(port)), family=family, backlog=16, dualstack_ipv6=host == '::')


def accept(listener, args, children):
    sock, peer = listener.accept()
    ip = ipaddress.ip_address(peer[0].partition('%')[0])
    collect(children)
    why = 'not the tester' if not admitted(ip, args.tester) else '%d sessions already' % SESSIONS if len(children) >= SESSIONS else ''
    if why:
        print('connection refused:', ip, why, file=sys.stderr, flush=True)
        sock.close()
        return
    pid = os.fork()
    if pid:
        children.add(pid)
        sock.close()
        return
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        listener.close()
        serve(sock, args.device, args.token)
        status = 0
    except Exception as error:
        print('session of %s: %s' % (ip, error), file=sys.stderr, flush=True)
    finally:
        os._exit(status)     # the kernel takes with the process what is left


def main():
    p = argparse.ArgumentParser(description='Serves the conformance tester on the side of a Linux RDMA device.')
    p.add_argument('--device', required=True, help='the RDMA device, as rxe0')
    p.add_argument('--tester', required=True, action='append', type=network, help='address or prefix that may connect; several are allowed')
    p.add_argument('--listen', default='0.0.0.0:%d' % PORT, help='ADDR:PORT to listen on (default: %(default)s)')
    p.add_argument('--token', default='', help='a word that the tester must know, too')
    args = p.parse_args()
    Context(name=args.device).close()     # whether it is there shows before a tester comes
    listener, children = listen(args.listen), set()
    print('agent of %s on %s:%d, for %s' % (args.device, *listener.getsockname()[:2], ', '.join(map(str, args.tester))), flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while True:
            try:
                accept(listener, args, children)
            except OSError as error:
                print('accept: %s' % error, file=sys.stderr, flush=True)
                time.sleep(0.05)
    except KeyboardInterrupt:
        pass
    finally:
        for pid in children:
            os.kill(pid, signal.SIGTERM)


if __name__ == '__main__':
    main()
