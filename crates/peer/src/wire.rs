//! [`Wire`]: the bytes of one connection, as they are or within TLS, with deadlines.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConnection, Connection, ServerConnection};

use crate::socket::{self, Patience};
use crate::tls::{self, Tls};

/// Bytes that are encrypted before any of them are sent.
const CHUNK_BYTES: usize = 128 << 10;
/// First byte of all that TLS sends in a handshake.
const HANDSHAKE_RECORD: u8 = 0x16;
/// What binds the proof of the key to the connection, so that nobody between two nodes can have one
/// TLS connection to each and pass their proofs on.
const BINDING_LABEL: &[u8] = b"EXPORTER-tidepool-peer-1";
/// Bytes of a binding.
pub(crate) const BINDING_BYTES: usize = 32;

/// See the module's documentation.
pub(crate) struct Wire<S> {
    socket: S,
    tls: Option<Box<Connection>>,
}

/// A socket for `rustls`, which waits as long as the patience goes.
struct Raw<'a, S> {
    socket: &'a S,
    patience: Patience,
}

impl<S: AsFd> Read for Raw<'_, S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        socket::receive_some(self.socket, into, self.patience)
    }
}

impl<S: AsFd> Write for Raw<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        socket::send_parts(self.socket, parts, self.patience)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What TLS finds wrong with bytes is no end of the stream and no broken socket.
fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<S: AsFd> Wire<S> {
    /// Bytes as they are.
    pub fn plain(socket: S) -> Self {
        Wire { socket, tls: None }
    }

    /// Within TLS, as the client of a node of that name.
    ///
    /// # Errors
    /// `InvalidData`: what the other side says is no TLS, or its certificate is not taken.
    pub fn client(socket: S, tls: &Tls, peer: &str, patience: Patience) -> io::Result<Self> {
        let name = tls::name_of(peer).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "its name fits in no certificate")
        })?;
        let connection = ClientConnection::new(tls.client.clone(), name).map_err(invalid)?;
        Wire { socket, tls: Some(Box::new(connection.into())) }.shake_hands(patience)
    }

    /// Within TLS, as the server.
    ///
    /// # Errors
    /// As [`client`](Self::client).
    pub fn server(socket: S, tls: &Tls, patience: Patience) -> io::Result<Self> {
        let connection = ServerConnection::new(tls.server.clone()).map_err(invalid)?;
        Wire { socket, tls: Some(Box::new(connection.into())) }.shake_hands(patience)
    }

    fn shake_hands(mut self, patience: Patience) -> io::Result<Self> {
        let Some(tls) = &mut self.tls else { return Ok(self) };
        tls.set_buffer_limit(Some(4 * CHUNK_BYTES));
        let mut raw = Raw { socket: &self.socket, patience };
        loop {
            while tls.wants_write() {
                tls.write_tls(&mut raw)?;
            }
            if !tls.is_handshaking() {
                return Ok(self);
            }
            tls.read_tls(&mut raw)?;
            if let Err(error) = tls.process_new_packets() {
                // Says why, as far as the other side still listens.
                let _ = tls.write_tls(&mut raw);
                return Err(invalid(error));
            }
        }
    }

    /// What both sides of this TLS connection have in common with no other; zeros without TLS.
    pub fn binding(&self) -> io::Result<[u8; BINDING_BYTES]> {
        let zeros = [0; BINDING_BYTES];
        match &self.tls {
            Some(tls) => tls.export_keying_material(zeros, BINDING_LABEL, None).map_err(invalid),
            None => Ok(zeros),
        }
    }

    /// Whether the other side's certificate carries this name; true without TLS.
    pub fn is_certified_as(&self, node: &str) -> bool {
        let own = |chain: &[CertificateDer<'static>]| {
            chain.first().is_some_and(|own| tls::is_of(own, node))
        };
        self.tls.as_ref().is_none_or(|tls| tls.peer_certificates().is_some_and(own))
    }

    /// Whether bytes are encrypted, so that those of a file have to be copied.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// The socket, to look at.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// All of `bytes`. With `more` they may wait for what comes next.
    pub fn send_all(&mut self, bytes: &[u8], more: bool, patience: Patience) -> io::Result<()> {
        let Some(tls) = &mut self.tls else {
            return socket::send_all(&self.socket, bytes, more, patience);
        };
        let mut raw = Raw { socket: &self.socket, patience };
        for chunk in bytes.chunks(CHUNK_BYTES) {
            tls.writer().write_all(chunk)?;
            let waits = more && chunk.len() < CHUNK_BYTES;
            while tls.wants_write() && !waits {
                tls.write_tls(&mut raw)?;
            }
        }
        while tls.wants_write() && !more {
            tls.write_tls(&mut raw)?;
        }
        Ok(())
    }

    /// Some bytes, at least one.
    ///
    /// # Errors
    /// `UnexpectedEof` at the end of the stream, `TimedOut`, `InvalidData` where TLS finds them
    /// changed, and those of the socket.
    fn receive_some(&mut self, into: &mut [u8], patience: Patience) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return socket::receive_some(&self.socket, into, patience);
        };
        let mut raw = Raw { socket: &self.socket, patience };
        loop {
            match tls.reader().read(into) {
                Ok(0) if !into.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
            tls.read_tls(&mut raw)?;
            tls.process_new_packets().map_err(invalid)?;
            while tls.wants_write() {
                tls.write_tls(&mut raw)?;
            }
        }
    }

    /// As many bytes as `into` has.
    ///
    /// # Errors
    /// Those of some bytes.
    pub fn receive_exact(&mut self, into: &mut [u8], patience: Patience) -> io::Result<()> {
        let mut received = 0;
        while received < into.len() {
            received += self.receive_some(&mut into[received..], patience)?;
        }
        Ok(())
    }

    /// Some bytes of many; see [`socket::receive_body`].
    pub fn receive_body(&mut self, into: &mut [u8], patience: Patience) -> io::Result<usize> {
        match self.tls {
            Some(_) => self.receive_some(into, patience),
            None => socket::receive_body(&self.socket, into, patience),
        }
    }

    /// Up to `length` bytes of `file`, without copies; see [`socket::send_file`]. Only where
    /// nothing is encrypted.
    pub fn send_file(
        &mut self,
        file: &OwnedFd,
        offset: u64,
        length: usize,
        patience: Patience,
    ) -> io::Result<usize> {
        debug_assert!(!self.is_encrypted(), "what is encrypted is copied");
        socket::send_file(&self.socket, file, offset, length, patience)
    }

    /// Whether bytes, or the end of the stream, came before `wait` was over.
    pub fn is_readable(&mut self, wait: Duration) -> io::Result<bool> {
        if let Some(tls) = &mut self.tls {
            let state = tls.process_new_packets().map_err(invalid)?;
            if state.plaintext_bytes_to_read() > 0 {
                return Ok(true);
            }
        }
        socket::ready(&self.socket, PollFlags::IN, wait)
    }
}

/// Whether the client on a connection that has said nothing yet begins with TLS.
pub(crate) fn begins_with_tls(socket: &impl AsFd, patience: Patience) -> io::Result<bool> {
    socket::wait_readable(socket, patience)?;
    Ok(socket::peek(socket)? == Some(HANDSHAKE_RECORD))
}
