//! Datagrams of membership: a prefix of ours, then a message of `foca` in our own encoding.
//!
//! Prefix: `T`, version 1, kind, and 4 bytes of the hash of the cluster's name. Numbers are
//! big-endian. All is checked here, so that what `foca` sees is well formed and speaks of nodes of
//! the roster only.

use std::fmt;

use bytes::{Buf, BufMut};
use foca::{Header, Member, Message, State};

use crate::hash;

/// Bytes of the prefix.
pub(crate) const PREFIX_BYTES: usize = 7;
/// Version of the datagrams; others are ignored.
const VERSION: u8 = 1;
/// Bytes of an identity.
const IDENTITY_BYTES: usize = 18;
/// Bit of the renewal that says: left by its own will.
const LEFT: u16 = 1 << 15;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message of `foca`.
    Gossip = 1,
    /// "You are suspected, say that you live": the accuser, then the suspect as a member.
    Accusation = 2,
    /// "I leave": an identity.
    GoodBye = 3,
    /// "You lived later than you think": the receiver's latest life that the sender heard of.
    LaterLife = 4,
}

/// One life of a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    /// Hash of the name.
    pub id: u64,
    /// Given at the start of the node.
    pub incarnation: u64,
    /// How often it was declared dead by mistake and came back.
    pub renewal: u16,
    /// It left by its own will. A remark, not a part of the identity.
    pub left: bool,
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.incarnation, self.renewal) == (other.id, other.incarnation, other.renewal)
    }
}

impl Eq for Identity {}

impl foca::Identity for Identity {
    type Addr = u64;

    fn renew(&self) -> Option<Self> {
        // After 32,767 renewals the node stays out until it is started again.
        let renewal = self.renewal.checked_add(1).filter(|renewal| renewal & LEFT == 0)?;
        Some(Self { renewal, ..*self })
    }

    fn addr(&self) -> u64 {
        self.id
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        (self.incarnation, self.renewal) > (adversary.incarnation, adversary.renewal)
    }
}

/// A datagram that is no message.
#[derive(Debug)]
pub(crate) struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("no message of the cluster")
    }
}

impl std::error::Error for Malformed {}

/// The encoding that `foca` uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codec;

impl foca::Codec<Identity> for Codec {
    type Error = Malformed;

    fn encode_header(
        &mut self,
        header: &Header<Identity>,
        mut buffer: impl BufMut,
    ) -> Result<(), Malformed> {
        if buffer.remaining_mut() < 2 * IDENTITY_BYTES + 2 + 2 + IDENTITY_BYTES {
            return Err(Malformed);
        }
        put_identity(&header.src, &mut buffer);
        buffer.put_u16(header.src_incarnation);
        put_identity(&header.dst, &mut buffer);
        put_message(&header.message, &mut buffer);
        Ok(())
    }

    fn decode_header(&mut self, mut buffer: impl Buf) -> Result<Header<Identity>, Malformed> {
        let src = get_identity(&mut buffer)?;
        let src_incarnation = buffer.try_get_u16().map_err(|_| Malformed)?;
        let dst = get_identity(&mut buffer)?;
        let message = get_message(&mut buffer)?;
        Ok(Header { src, src_incarnation, dst, message })
    }

    fn encode_member(
        &mut self,
        member: &Member<Identity>,
        mut buffer: impl BufMut,
    ) -> Result<(), Malformed> {
        if buffer.remaining_mut() < IDENTITY_BYTES + 3 {
            return Err(Malformed);
        }
        put_identity(member.id(), &mut buffer);
        buffer.put_u16(member.incarnation());
        buffer.put_u8(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        Ok(())
    }

    fn decode_member(&mut self, mut buffer: impl Buf) -> Result<Member<Identity>, Malformed> {
        let id = get_identity(&mut buffer)?;
        let incarnation = buffer.try_get_u16().map_err(|_| Malformed)?;
        let state = match buffer.try_get_u8().map_err(|_| Malformed)? {
            0 => State::Alive,
            1 => State::Suspect,
            2 => State::Down,
            _ => return Err(Malformed),
        };
        Ok(Member::new(id, incarnation, state))
    }
}

pub(crate) fn put_identity(identity: &Identity, buffer: &mut impl BufMut) {
    buffer.put_u64(identity.id);
    buffer.put_u64(identity.incarnation);
    buffer.put_u16(identity.renewal | if identity.left { LEFT } else { 0 });
}

pub(crate) fn get_identity(buffer: &mut impl Buf) -> Result<Identity, Malformed> {
    let id = buffer.try_get_u64().map_err(|_| Malformed)?;
    let incarnation = buffer.try_get_u64().map_err(|_| Malformed)?;
    let renewal = buffer.try_get_u16().map_err(|_| Malformed)?;
    Ok(Identity { id, incarnation, renewal: renewal & !LEFT, left: renewal & LEFT != 0 })
}

fn put_message(message: &Message<Identity>, buffer: &mut impl BufMut) {
    let mut put = |kind: u8, number: u8, about: Option<&Identity>| {
        buffer.put_u8(kind);
        buffer.put_u8(number);
        if let Some(about) = about {
            put_identity(about, buffer);
        }
    };
    match message {
        Message::Ping(number) => put(0, *number, None),
        Message::Ack(number) => put(1, *number, None),
        Message::PingReq { target, probe_number } => put(2, *probe_number, Some(target)),
        Message::IndirectPing { origin, probe_number } => put(3, *probe_number, Some(origin)),
        Message::IndirectAck { target, probe_number } => put(4, *probe_number, Some(target)),
        Message::ForwardedAck { origin, probe_number } => put(5, *probe_number, Some(origin)),
        Message::Announce => put(6, 0, None),
        Message::Feed => put(7, 0, None),
        Message::Gossip => put(8, 0, None),
        Message::Broadcast => put(9, 0, None),
        Message::TurnUndead => put(10, 0, None),
    }
}

fn get_message(buffer: &mut impl Buf) -> Result<Message<Identity>, Malformed> {
    let kind = buffer.try_get_u8().map_err(|_| Malformed)?;
    let probe_number = buffer.try_get_u8().map_err(|_| Malformed)?;
    Ok(match kind {
        0 => Message::Ping(probe_number),
        1 => Message::Ack(probe_number),
        2 => Message::PingReq { target: get_identity(buffer)?, probe_number },
        3 => Message::IndirectPing { origin: get_identity(buffer)?, probe_number },
        4 => Message::IndirectAck { target: get_identity(buffer)?, probe_number },
        5 => Message::ForwardedAck { origin: get_identity(buffer)?, probe_number },
        6 => Message::Announce,
        7 => Message::Feed,
        8 => Message::Gossip,
        10 => Message::TurnUndead,
        _ => return Err(Malformed),
    })
}

/// Who a message of `foca` is about, besides sender and receiver.
const fn third(message: &Message<Identity>) -> Option<&Identity> {
    match message {
        Message::PingReq { target, .. } | Message::IndirectAck { target, .. } => Some(target),
        Message::IndirectPing { origin, .. } | Message::ForwardedAck { origin, .. } => Some(origin),
        _ => None,
    }
}

/// What stands for the cluster in each datagram.
pub(crate) fn cluster(name: &str) -> [u8; 4] {
    let [a, b, c, d, ..] = hash::text(name.as_bytes()).to_be_bytes();
    [a, b, c, d]
}

/// First bytes of each datagram of the cluster.
pub(crate) const fn prefix(cluster: [u8; 4], kind: Kind) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d] = cluster;
    [b'T', VERSION, kind as u8, a, b, c, d]
}

/// Takes the prefix off.
pub(crate) fn open(cluster: [u8; 4], bytes: &[u8]) -> Result<(Kind, &[u8]), Malformed> {
    for kind in [Kind::Gossip, Kind::Accusation, Kind::GoodBye, Kind::LaterLife] {
        if let Some(body) = bytes.strip_prefix(&prefix(cluster, kind)[..]) {
            return Ok((kind, body));
        }
    }
    Err(Malformed)
}

/// A message of `foca` without what it says about nodes that `known` does not name; `Ok(None)`
/// where it is about such a node as a whole.
pub(crate) fn checked(
    body: &[u8],
    known: impl Fn(u64) -> bool,
) -> Result<Option<Vec<u8>>, Malformed> {
    use foca::Codec as _;
    let mut rest = body;
    let header = Codec.decode_header(&mut rest)?;
    let head = &body[..body.len() - rest.len()];
    let mut bytes = Vec::with_capacity(body.len());
    bytes.extend_from_slice(head);
    if !rest.is_empty() {
        let count = rest.try_get_u16().map_err(|_| Malformed)?;
        let count_at = bytes.len();
        bytes.extend_from_slice(&[0, 0]);
        let mut kept = 0_u16;
        for _ in 0..count {
            let member = Codec.decode_member(&mut rest)?;
            if known(member.id().id) {
                Codec.encode_member(&member, &mut bytes)?;
                kept += 1;
            }
        }
        if !rest.is_empty() {
            return Err(Malformed);
        }
        bytes[count_at..count_at + 2].copy_from_slice(&kept.to_be_bytes());
    }
    let named = known(header.src.id) && third(&header.message).is_none_or(|third| known(third.id));
    Ok(named.then_some(bytes))
}
