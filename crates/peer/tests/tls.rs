//! Connections within TLS: what goes well, who is refused on which side and how that is said, bytes
//! that are changed on the way, and somebody between two nodes who has their certificates.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use support::certificates::Authority;
use support::{Holder, LONG, identity, patient, pattern, reach_with, request, serve_as, wait_for};
use tidepool_peer::{
    Bytes, Fault, Identity, Integrity, Limits, PeerError, Server, TcpTransport, Tls, TlsFiles,
    Transport,
};

const MIB: usize = 1 << 20;

/// A node with a certificate of its name.
fn certified(authority: &Authority, node: &str) -> Identity {
    Identity { tls: Some(authority.tls(node)), ..identity(node) }
}

fn serve(holder: &Arc<Holder>, identity: Identity) -> Server {
    serve_as(identity, holder, Integrity::Headers, patient())
}

fn reach(identity: Identity, address: SocketAddr) -> TcpTransport {
    reach_with(identity, Integrity::Headers, address)
}

fn call(transport: &TcpTransport) -> Result<Vec<u8>, PeerError> {
    transport.call("holder", b"?", LONG)
}

#[test]
fn requests_and_blocks_of_all_lengths_arrive() {
    let authority = Authority::new();
    for integrity in [Integrity::Headers, Integrity::Full] {
        let holder = Arc::new(Holder::new(4 * MIB));
        let server = serve_as(certified(&authority, "holder"), &holder, integrity, patient());
        let transport = reach_with(certified(&authority, "reader"), integrity, server.local_addr());
        for size in [0, 1, MIB - 100] {
            let question = vec![b'q'; size];
            let reply = transport.call("holder", &question, LONG).expect("a reply");
            assert_eq!(reply, [b"reader: ", &question[..]].concat());
        }
        let lengths = [0, 1, 4095, 256 << 10, (256 << 10) - 1, MIB + 3, 4 * MIB - 8];
        for length in lengths {
            let mut into = vec![0xff; length];
            let fetched = transport.fetch("holder", &request(8, length), &mut into, LONG);
            fetched.expect("a block");
            assert!(into == pattern(0, 8, length), "{integrity:?}, {length} bytes");
        }
        let counters = server.counters();
        assert_eq!((counters.accepted, counters.confirmed), (1, lengths.len() as u64));
        assert_eq!(counters.copied_bytes, counters.block_bytes, "what is encrypted is copied");
        assert_eq!(server.queued_bytes(), 0);
    }
}

#[test]
fn a_block_that_changes_while_it_is_sent_is_not_taken() {
    let authority = Authority::new();
    let holder = Arc::new(Holder::finding(MIB, |holder, request, _| {
        let block = holder.with(Bytes::Copied(vec![0; request.length as usize]));
        holder.write(&[1; 8]);
        Ok(block)
    }));
    let server = serve(&holder, certified(&authority, "holder"));
    let transport = reach(certified(&authority, "reader"), server.local_addr());
    let fetched = transport.fetch("holder", &request(0, MIB), &mut vec![0; MIB], LONG);
    assert!(matches!(fetched, Err(PeerError::Changed)), "{fetched:?}");
    transport.call("holder", b"", LONG).expect("the connection is still good");
    assert_eq!(server.counters().accepted, 1);
}

/// What is said on both sides where one of these calls the other.
fn refused(of_holder: Identity, of_reader: Identity) -> (PeerError, Server) {
    let server = serve(&Arc::new(Holder::new(0)), of_holder);
    let error = call(&reach(of_reader, server.local_addr())).expect_err("no session");
    wait_for("the refusal to be counted", || server.counters().closed(Fault::Tls) == 1);
    assert_eq!(server.counters().authenticated, 0);
    assert!(error.to_string().contains("peer_tls_certificate_file"), "no remedy: {error}");
    (error, server)
}

#[test]
fn certificates_of_another_authority_are_refused_on_both_sides() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (error, _server) = refused(certified(&ours, "holder"), certified(&theirs, "reader"));
    assert!(matches!(error, PeerError::Certificate(_)), "{error}");
    // A reader that trusts both and whose own certificate the holder does not know.
    let mut trusting = theirs.issue("reader", false);
    let both = [ours.path("authority"), theirs.path("authority")]
        .map(|path| std::fs::read_to_string(path).expect("a file"));
    trusting.authority = theirs.path("both");
    std::fs::write(&trusting.authority, both.concat()).expect("a file");
    let tls = Some(Tls::load(&trusting, "reader").expect("its own are right"));
    let (error, _server) =
        refused(certified(&ours, "holder"), Identity { tls, ..identity("reader") });
    assert!(matches!(error, PeerError::Certificate(_)), "{error}");
}

#[test]
fn a_certificate_is_good_for_its_node_alone() {
    let authority = Authority::new();
    let (holder, other) = (certified(&authority, "holder"), certified(&authority, "other"));
    let as_reader = Identity { tls: other.tls.clone(), ..identity("reader") };
    refused(holder, as_reader);
    let as_holder = Identity { tls: other.tls, ..identity("holder") };
    refused(as_holder, certified(&authority, "reader"));
}

#[test]
fn tls_and_none_do_not_talk() {
    let authority = Authority::new();
    let (error, _server) = refused(certified(&authority, "holder"), identity("reader"));
    assert!(error.to_string().contains("holder speaks TLS only"), "{error}");
    refused(identity("holder"), certified(&authority, "reader"));
}

#[test]
fn the_key_is_still_needed() {
    let authority = Authority::new();
    let holder = Arc::new(Holder::new(0));
    let server = serve(&holder, certified(&authority, "holder"));
    let Identity { tls, .. } = certified(&authority, "reader");
    let stranger = Identity { tls, ..support::identity_with("reader", "reef", 2) };
    let error = call(&reach(stranger, server.local_addr())).expect_err("another key");
    assert!(matches!(error, PeerError::Authentication(_)), "{error}");
    assert_eq!(server.counters().authenticated, 0);
}

/// Passes bytes on, but changes one of those of the client after so many.
fn flipping(upstream: SocketAddr, at: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(upstream).expect("the server listens");
            let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
            let (mut from, mut to) = (copy(&server), copy(&client));
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let (mut from, mut to, at) = (client, server, at.clone());
            std::thread::spawn(move || {
                let (mut buffer, mut passed) = ([0; 4096], 0);
                while let Ok(length @ 1..) = from.read(&mut buffer) {
                    let at = at.load(Ordering::SeqCst);
                    if (passed..passed + length).contains(&at) {
                        buffer[at - passed] ^= 1;
                    }
                    passed += length;
                    if to.write_all(&buffer[..length]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    address
}

#[test]
fn no_byte_can_be_changed_on_its_way() {
    let authority = Authority::new();
    let holder = Arc::new(Holder::new(0));
    let server = serve(&holder, certified(&authority, "holder"));
    let at = Arc::new(AtomicUsize::new(usize::MAX));
    let address = flipping(server.local_addr(), at.clone());
    let reader = certified(&authority, "reader");
    call(&reach(reader.clone(), address)).expect("nothing is changed yet");
    // Through the greeting, the certificate, the proof and the request.
    for changed in (0..3000).step_by(97) {
        at.store(changed, Ordering::SeqCst);
        let calls = holder.calls.load(Ordering::SeqCst);
        let transport = reach(reader.clone(), address);
        if let Ok(reply) = transport.call("holder", b"?", Duration::from_secs(5)) {
            // Beyond what was sent, or a byte that means nothing.
            assert_eq!(reply, b"reader: ?");
        } else {
            assert_eq!(holder.calls.load(Ordering::SeqCst), calls, "byte {changed}");
        }
    }
}

fn stolen(files: &TlsFiles) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = CertificateDer::pem_file_iter(&files.certificate).expect("a certificate");
    let chain = chain.map(|it| it.expect("a certificate")).collect();
    (chain, PrivateKeyDer::from_pem_file(&files.private_key).expect("a key"))
}

/// Takes one connection of a reader, has one to the holder, and passes on what is said inside.
fn between(authority: &Authority, upstream: SocketAddr) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    let root = CertificateDer::from_pem_file(authority.path("authority")).expect("a certificate");
    roots.add(root).expect("an authority");
    let (chain, key) = stolen(&authority.issue("holder", false));
    let to_reader = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("a version")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a pair");
    let (chain, key) = stolen(&authority.issue("reader", false));
    let to_holder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("a version")
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .expect("a pair");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || -> std::io::Result<()> {
        let (client, _) = listener.accept()?;
        let server = TcpStream::connect(upstream)?;
        let name = ServerName::try_from("holder").expect("a name");
        let of_client = rustls::ServerConnection::new(Arc::new(to_reader)).expect("TLS");
        let of_server = rustls::ClientConnection::new(Arc::new(to_holder), name).expect("TLS");
        let mut client = rustls::StreamOwned::new(of_client, client);
        let mut server = rustls::StreamOwned::new(of_server, server);
        let mut length = [0; 2];
        client.read_exact(&mut length)?;
        let mut hello = vec![0; usize::from(u16::from_le_bytes(length))];
        client.read_exact(&mut hello)?;
        server.write_all(&[&length[..], &hello].concat())?;
        let mut answer = [0; 72];
        server.read_exact(&mut answer)?;
        client.write_all(&answer)?;
        let mut proof = [0; 32];
        client.read_exact(&mut proof)?;
        server.write_all(&proof)?;
        server.flush()
    });
    address
}

#[test]
fn proofs_cannot_be_passed_on_by_who_has_both_certificates() {
    let authority = Authority::new();
    let server = serve(&Arc::new(Holder::new(0)), certified(&authority, "holder"));
    let address = between(&authority, server.local_addr());
    let error = call(&reach(certified(&authority, "reader"), address)).expect_err("a proof");
    let words = error.to_string();
    assert!(words.contains("does not prove that it holds the key"), "{words}");
    assert_eq!(server.counters().authenticated, 0);
}

#[test]
fn who_begins_with_tls_and_stalls_is_cut_off() {
    let authority = Authority::new();
    let limits = Limits { handshake: Duration::from_millis(100), ..patient() };
    let holder = Arc::new(Holder::new(0));
    let server = serve_as(certified(&authority, "holder"), &holder, Integrity::Headers, limits);
    let mut stalled = TcpStream::connect(server.local_addr()).expect("a connection");
    stalled.write_all(&[0x16, 3, 1, 2, 0]).expect("a few bytes");
    let mut byte = [0];
    assert_eq!(stalled.read(&mut byte).unwrap_or(0), 0, "the server closes it");
    wait_for("its end", || server.counters().closed(Fault::TimedOut) == 1);
    let mut garbage = TcpStream::connect(server.local_addr()).expect("a connection");
    garbage.write_all(&[0x16; 600]).expect("a few bytes");
    wait_for("its end", || server.counters().closed(Fault::Tls) == 1);

    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let transport = reach(certified(&authority, "reader"), address);
    let error = transport.call("holder", b"", Duration::from_millis(50)).expect_err("silence");
    assert!(matches!(error, PeerError::TimedOut), "{error}");
}

#[test]
fn files_that_are_not_right_are_told_apart_at_the_start() {
    let authority = Authority::new();
    let right = authority.issue("n0", false);
    Tls::load(&right, "n0").expect("they are right");
    let says = |files: &TlsFiles, node: &str, words: &str| {
        let error = Tls::load(files, node).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    };
    says(&right, "n1", "name this node, `n1`");
    says(&right, "n 1", "no certificate can carry the name");
    says(&authority.issue("old", true), "old", "in date");
    let others = Authority::new();
    others.issue("n0", false);
    says(&TlsFiles { authority: others.path("authority"), ..right.clone() }, "n0", "signed by");
    let other = authority.issue("n2", false);
    let mixed = TlsFiles { private_key: other.private_key.clone(), ..right.clone() };
    says(&mixed, "n0", "not the key of the certificate");
    let swapped = TlsFiles { certificate: other.private_key.clone(), ..right.clone() };
    says(&swapped, "n0", "has no certificate");
    let no_key = TlsFiles { private_key: authority.path("no-key"), ..right.clone() };
    tidepool_test_authority::write_secret(&no_key.private_key, b"nothing").expect("a file");
    says(&no_key, "n0", "is no private key in PEM");
    says(
        &TlsFiles { private_key: authority.path("absent"), ..right.clone() },
        "n0",
        "cannot be read",
    );
    use std::os::unix::fs::PermissionsExt;
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&right.private_key, open).expect("a mode");
    says(&right, "n0", "mode 0644");
}
