//! How two nodes prove to each other that they hold the cluster's key, and who they are.
//!
//! 1. Client: version, integrity, nonce, cluster, its name, the name of whom it wants.
//! 2. Server: version, the stronger integrity of both, its nonce, a code over both messages.
//! 3. Client: a code over both messages.
//!
//! The codes are made with the key and differ by role, so neither can be sent back. Both sides
//! derive the keys of their frames from the key and from both messages: a message that was changed
//! on its way, to weaken anything, makes the first code wrong.
//!
//! Where nodes have certificates all of it is within TLS, and the codes are of that TLS connection
//! alone. A node has certificates and speaks TLS only, or has none and speaks none.

use std::io;
use std::os::fd::AsFd;

use crate::frame::{Keys, Opening, Sealing};
use crate::key::{NAME_BYTES_MAX, overwrite};
use crate::socket::Patience;
use crate::wire::{BINDING_BYTES, Wire, begins_with_tls};
use crate::{Identity, Integrity};

/// The protocol's version: there is one, and no other is spoken.
pub(crate) const VERSION: u16 = 1;

const CLIENT_MAGIC: [u8; 4] = *b"TPpc";
const SERVER_MAGIC: [u8; 4] = *b"TPps";
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
/// Magic, version, integrity, nonce.
const HELLO_FIXED_BYTES: usize = 4 + 2 + 1 + NONCE_BYTES;
/// Most bytes of a hello, without its length.
const HELLO_BYTES_MAX: usize = HELLO_FIXED_BYTES + 3 * (1 + NAME_BYTES_MAX);
/// Magic, answer, version, integrity, nonce.
const ANSWER_BYTES: usize = 4 + 1 + 2 + 1 + NONCE_BYTES;

/// Why there is no session.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    Io(io::Error),
    /// The bytes are no message of a handshake.
    Garbage,
    /// Another version, the other side's.
    Version(u16),
    /// The other side belongs to another cluster.
    Cluster,
    /// The other side is another node than the one that is meant.
    Name,
    /// The other side does not prove that it holds the key.
    Proof,
    /// No TLS comes about with the other side, or not with who it says it is.
    Tls(String),
    /// The other side speaks TLS only.
    TlsOnly,
    /// The other side speaks TLS, and this one does not.
    TlsUnknown,
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Why a server says no. It says so unproven: it may be anybody.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Answer {
    Welcome = 0,
    Version = 1,
    Cluster = 2,
    Name = 3,
    TlsOnly = 4,
    Certificate = 5,
}

/// What a client says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub version: u16,
    pub integrity: Integrity,
    nonce: [u8; NONCE_BYTES],
    pub cluster: String,
    pub from: String,
    pub to: String,
}

impl Hello {
    /// The message, its length in front.
    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(HELLO_BYTES_MAX);
        body.extend_from_slice(&CLIENT_MAGIC);
        body.extend_from_slice(&self.version.to_le_bytes());
        body.push(integrity_byte(self.integrity));
        body.extend_from_slice(&self.nonce);
        for name in [&self.cluster, &self.from, &self.to] {
            body.push(name.len() as u8);
            body.extend_from_slice(name.as_bytes());
        }
        let mut message = (body.len() as u16).to_le_bytes().to_vec();
        message.append(&mut body);
        message
    }

    /// The message without its length.
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let (fixed, mut names) =
            bytes.split_at_checked(HELLO_FIXED_BYTES).ok_or(HandshakeError::Garbage)?;
        if fixed[..4] != CLIENT_MAGIC {
            return Err(HandshakeError::Garbage);
        }
        let version = u16::from_le_bytes([fixed[4], fixed[5]]);
        if version != VERSION {
            return Err(HandshakeError::Version(version));
        }
        let integrity = integrity_of(fixed[6]).ok_or(HandshakeError::Garbage)?;
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&fixed[7..]);
        let mut name = || -> Option<String> {
            let (length, rest) = names.split_first()?;
            let (name, rest) = rest.split_at_checked(usize::from(*length))?;
            names = rest;
            let acceptable = (1..=NAME_BYTES_MAX).contains(&name.len());
            String::from_utf8(name.to_vec()).ok().filter(|_| acceptable)
        };
        let mut next = || name().ok_or(HandshakeError::Garbage);
        let (cluster, from, to) = (next()?, next()?, next()?);
        if !names.is_empty() {
            return Err(HandshakeError::Garbage);
        }
        Ok(Self { version, integrity, nonce, cluster, from, to })
    }
}

fn integrity_byte(integrity: Integrity) -> u8 {
    match integrity {
        Integrity::Headers => 1,
        Integrity::Full => 2,
    }
}

fn integrity_of(byte: u8) -> Option<Integrity> {
    match byte {
        1 => Some(Integrity::Headers),
        2 => Some(Integrity::Full),
        _ => None,
    }
}

/// What both sides have after the handshake.
pub(crate) struct Session {
    pub sealing: Sealing,
    pub opening: Opening,
    pub integrity: Integrity,
    /// The other side.
    pub peer: String,
}

/// Bytes that nobody can foresee.
pub(crate) fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut bytes[filled..], flags) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

/// What both sides derive from the key and from what they said.
struct Derived {
    server_proof: [u8; PROOF_BYTES],
    client_proof: [u8; PROOF_BYTES],
    secret: [u8; 64],
}

impl Drop for Derived {
    fn drop(&mut self) {
        overwrite(&mut self.secret);
    }
}

impl Derived {
    fn new(
        identity: &Identity,
        binding: &[u8; BINDING_BYTES],
        hello: &[u8],
        answer: &[u8],
    ) -> Self {
        let mut transcript = blake3::Hasher::new();
        transcript.update(binding).update(hello).update(answer);
        let transcript = *transcript.finalize().as_bytes();
        let key = identity.key.derive("tidepool peer 1 handshake", &identity.cluster);
        let proof = |role: &str| -> [u8; PROOF_BYTES] {
            let mut hasher = blake3::Hasher::new_keyed(&key);
            hasher.update(role.as_bytes()).update(&transcript);
            hasher.finalize().into()
        };
        let mut secret = [0; 64];
        secret[..32]
            .copy_from_slice(&identity.key.derive("tidepool peer 1 session", &identity.cluster));
        secret[32..].copy_from_slice(&transcript);
        Self { server_proof: proof("server"), client_proof: proof("client"), secret }
    }

    /// The keys of both directions: the client's frames, the server's frames.
    fn keys(&self) -> (Keys, Keys) {
        let key = |of: &str| blake3::derive_key(of, &self.secret);
        (
            Keys::new(key("tidepool peer 1 client header"), key("tidepool peer 1 client payload")),
            Keys::new(key("tidepool peer 1 server header"), key("tidepool peer 1 server payload")),
        )
    }
}

/// What went wrong while TLS came about.
fn no_tls(error: io::Error) -> HandshakeError {
    match error.kind() {
        io::ErrorKind::TimedOut => HandshakeError::Io(error),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            HandshakeError::Tls("it closed the connection when TLS was to begin".to_owned())
        }
        _ => HandshakeError::Tls(error.to_string()),
    }
}

/// The client's side of a handshake with `peer`.
pub(crate) fn connect<S: AsFd>(
    socket: S,
    identity: &Identity,
    integrity: Integrity,
    peer: &str,
    patience: Patience,
) -> Result<(Wire<S>, Session), HandshakeError> {
    let mut wire = match &identity.tls {
        Some(tls) => Wire::client(socket, tls, peer, patience).map_err(no_tls)?,
        None => Wire::plain(socket),
    };
    let session = introduce(&mut wire, identity, integrity, peer, patience).map_err(|error| {
        match error {
            // A server that does not take the certificate says so after its own handshake.
            HandshakeError::Io(error) if wire.is_encrypted() => no_tls(error),
            error => error,
        }
    })?;
    Ok((wire, session))
}

fn introduce<S: AsFd>(
    wire: &mut Wire<S>,
    identity: &Identity,
    integrity: Integrity,
    peer: &str,
    patience: Patience,
) -> Result<Session, HandshakeError> {
    let hello = Hello {
        version: VERSION,
        integrity,
        nonce: random_bytes()?,
        cluster: identity.cluster.clone(),
        from: identity.node.clone(),
        to: peer.to_owned(),
    }
    .encode();
    wire.send_all(&hello, false, patience)?;
    let mut message = [0; ANSWER_BYTES + PROOF_BYTES];
    wire.receive_exact(&mut message, patience)?;
    let (answer, proof) = message.split_at(ANSWER_BYTES);
    if answer[..4] != SERVER_MAGIC {
        return Err(HandshakeError::Garbage);
    }
    let version = u16::from_le_bytes([answer[5], answer[6]]);
    match answer[4] {
        0 if version == VERSION => {}
        0 | 1 => return Err(HandshakeError::Version(version)),
        2 => return Err(HandshakeError::Cluster),
        3 => return Err(HandshakeError::Name),
        4 => return Err(HandshakeError::TlsOnly),
        5 => {
            let what = "it says that this node's certificate is of another node";
            return Err(HandshakeError::Tls(what.to_owned()));
        }
        _ => return Err(HandshakeError::Garbage),
    }
    let derived = Derived::new(identity, &wire.binding()?, &hello, answer);
    if !same_proof(&derived.server_proof, proof) {
        return Err(HandshakeError::Proof);
    }
    let agreed = integrity_of(answer[7]).ok_or(HandshakeError::Garbage)?;
    // Proven, and still never weaker than asked for.
    if agreed < integrity {
        return Err(HandshakeError::Proof);
    }
    wire.send_all(&derived.client_proof, false, patience)?;
    let (client, server) = derived.keys();
    Ok(Session {
        sealing: Sealing::new(client),
        opening: Opening::new(server),
        integrity: agreed,
        peer: peer.to_owned(),
    })
}

/// The server's side.
pub(crate) fn accept<S: AsFd>(
    socket: S,
    identity: &Identity,
    integrity: Integrity,
    patience: Patience,
) -> Result<(Wire<S>, Session), HandshakeError> {
    let begins_with_tls = begins_with_tls(&socket, patience)?;
    let (mut wire, refusal) = match &identity.tls {
        Some(tls) if begins_with_tls => {
            (Wire::server(socket, tls, patience).map_err(no_tls)?, None)
        }
        Some(_) => (Wire::plain(socket), Some((Answer::TlsOnly, HandshakeError::TlsOnly))),
        None if begins_with_tls => return Err(HandshakeError::TlsUnknown),
        None => (Wire::plain(socket), None),
    };
    let session = welcome(&mut wire, identity, integrity, refusal, patience)?;
    Ok((wire, session))
}

/// Hears who it is, refuses for that reason if there is one, and proves both sides.
fn welcome<S: AsFd>(
    wire: &mut Wire<S>,
    identity: &Identity,
    integrity: Integrity,
    refusal: Option<(Answer, HandshakeError)>,
    patience: Patience,
) -> Result<Session, HandshakeError> {
    let mut message = [0; 2 + HELLO_BYTES_MAX];
    wire.receive_exact(&mut message[..2], patience)?;
    let length = usize::from(u16::from_le_bytes([message[0], message[1]]));
    if !(HELLO_FIXED_BYTES..=HELLO_BYTES_MAX).contains(&length) {
        return Err(HandshakeError::Garbage);
    }
    let message = &mut message[..2 + length];
    wire.receive_exact(&mut message[2..], patience)?;
    let hello = match judge(Hello::decode(&message[2..]), identity, refusal, wire) {
        Ok(hello) => hello,
        Err((None, error)) => return Err(error),
        Err((Some(answer), error)) => {
            let message = answer_message(answer, integrity, &[0; NONCE_BYTES]);
            // Who does not take it does not need it.
            let _ = wire.send_all(&[&message[..], &[0; PROOF_BYTES]].concat(), false, patience);
            return Err(error);
        }
    };
    let agreed = integrity.max(hello.integrity);
    let answer = answer_message(Answer::Welcome, agreed, &random_bytes()?);
    let derived = Derived::new(identity, &wire.binding()?, message, &answer);
    wire.send_all(&[&answer[..], &derived.server_proof].concat(), false, patience)?;
    let mut proof = [0; PROOF_BYTES];
    wire.receive_exact(&mut proof, patience)?;
    if !same_proof(&derived.client_proof, &proof) {
        return Err(HandshakeError::Proof);
    }
    let (client, server) = derived.keys();
    Ok(Session {
        sealing: Sealing::new(server),
        opening: Opening::new(client),
        integrity: agreed,
        peer: hello.from,
    })
}

/// The hello of a client that is welcome, or what it is answered and why it is not.
fn judge<S: AsFd>(
    hello: Result<Hello, HandshakeError>,
    identity: &Identity,
    refusal: Option<(Answer, HandshakeError)>,
    wire: &Wire<S>,
) -> Result<Hello, (Option<Answer>, HandshakeError)> {
    let hello = hello.map_err(|error| match error {
        HandshakeError::Version(_) => (Some(Answer::Version), error),
        error => (None, error),
    })?;
    if let Some((answer, error)) = refusal {
        return Err((Some(answer), error));
    }
    if hello.cluster != identity.cluster {
        return Err((Some(Answer::Cluster), HandshakeError::Cluster));
    }
    if hello.to != identity.node || hello.from == identity.node {
        return Err((Some(Answer::Name), HandshakeError::Name));
    }
    if !wire.is_certified_as(&hello.from) {
        let what = format!("its certificate is not of {}, which it says it is", hello.from);
        return Err((Some(Answer::Certificate), HandshakeError::Tls(what)));
    }
    Ok(hello)
}

fn answer_message(
    answer: Answer,
    integrity: Integrity,
    nonce: &[u8; NONCE_BYTES],
) -> [u8; ANSWER_BYTES] {
    let mut message = [0; ANSWER_BYTES];
    message[..4].copy_from_slice(&SERVER_MAGIC);
    message[4] = answer as u8;
    message[5..7].copy_from_slice(&VERSION.to_le_bytes());
    message[7] = integrity_byte(integrity);
    message[8..].copy_from_slice(nonce);
    message
}

/// Compares in a time that does not tell where they differ.
fn same_proof(right: &[u8; PROOF_BYTES], sent: &[u8]) -> bool {
    <[u8; PROOF_BYTES]>::try_from(sent)
        .is_ok_and(|sent| blake3::Hash::from(*right) == blake3::Hash::from(sent))
}
