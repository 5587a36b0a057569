//! TLS between nodes: certificates of an authority of the cluster's own, both sides proven, version
//! 1.3 and nothing older. It hides what is sent; who is a member is still proven by the key.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::key::open_secret;

/// Most bytes of a file with certificates.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where a node's certificate is, in PEM each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The node's certificate, and those between it and the authority's.
    pub certificate: PathBuf,
    /// Its private key; nobody else may read it.
    pub private_key: PathBuf,
    /// The certificates of the authority that signs those of all nodes.
    pub authority: PathBuf,
}

/// What a node proves itself with, and checks others by. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Tls")
    }
}

/// Why certificates are not taken, and what to do.
#[derive(Debug)]
pub struct TlsError {
    path: PathBuf,
    what: String,
}

impl fmt::Display for TlsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.path.display(), self.what)
    }
}

impl std::error::Error for TlsError {}

fn bad(path: &Path, what: impl fmt::Display) -> TlsError {
    TlsError { path: path.to_owned(), what: what.to_string() }
}

fn unreadable(path: &Path, error: std::io::Error) -> TlsError {
    bad(path, format!("cannot be read: {error}"))
}

/// The name that a node's certificate has to carry, as it stands in certificates.
pub(crate) fn name_of(node: &str) -> Option<ServerName<'static>> {
    ServerName::try_from(node.to_owned()).ok()
}

/// Whether a certificate that was found right is the node's.
pub(crate) fn is_of(certificate: &CertificateDer<'_>, node: &str) -> bool {
    let parsed = ParsedCertificate::try_from(certificate);
    let name = name_of(node);
    parsed.is_ok_and(|it| name.is_some_and(|name| verify_server_name(&it, &name).is_ok()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = std::fs::File::open(path).map_err(|error| unreadable(path, error))?;
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(|it| unreadable(path, it))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| bad(path, format!("is no certificate in PEM: {error}")))?;
    match all.is_empty() {
        true => Err(bad(path, "has no certificate in PEM")),
        false => Ok(all),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let file = open_secret(path).map_err(|fault| bad(path, fault))?;
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(|it| unreadable(path, it))?;
    PrivateKeyDer::from_pem_slice(&text)
        .map_err(|error| bad(path, format!("is no private key in PEM: {error}")))
}

impl Tls {
    /// Reads the files of the node of this name, and checks that other nodes would take them.
    ///
    /// # Errors
    /// A file cannot be read or is not what it is to be, the private key is readable by others, the
    /// certificate is not of this authority, out of date, of another name, or has another key.
    pub fn load(files: &TlsFiles, node: &str) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&files.authority)? {
            roots
                .add(certificate)
                .map_err(|error| bad(&files.authority, format!("is of no authority: {error}")))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates(&files.certificate)?;
        check_own(&files.certificate, &chain, node, &roots, &provider)?;
        let key = private_key(&files.private_key)?;
        let of_pair =
            |error| bad(&files.private_key, format!("is not the key of the certificate: {error}"));
        let of_authority =
            |error: &dyn fmt::Display| bad(&files.authority, format!("cannot be used: {error}"));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let verifier = verifier.build().map_err(|error| of_authority(&error))?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| of_authority(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(of_pair)?;
        // Connections are kept; nothing is gained by taking up an old session.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| of_authority(&error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(of_pair)?;
        client.resumption = Resumption::disabled();
        Ok(Tls { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// What other nodes would find wrong with this one's certificate.
fn check_own(
    path: &Path,
    chain: &[CertificateDer<'static>],
    node: &str,
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> Result<(), TlsError> {
    let verifier =
        WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
    let verifier = verifier.map_err(|error| bad(path, format!("cannot be checked: {error}")))?;
    let name = name_of(node).ok_or_else(|| {
        bad(path, format!("cannot be of this node: no certificate can carry the name `{node}`"))
    })?;
    let (own, between) = chain.split_first().expect("there is a certificate");
    verifier.verify_server_cert(own, between, &name, &[], UnixTime::now()).map(drop).map_err(
        |error| {
            let needed = format!(
                "would be refused by other nodes: {error}. It has to be signed by the authority, \
                 in date, and name this node, `{node}`, among its alternative names (DNS; IP \
                 where the name is an address)"
            );
            bad(path, needed)
        },
    )
}
