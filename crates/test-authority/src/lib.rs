//! An authority that signs certificates of nodes, in files: for tests and test clusters.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// An authority, and where the files of what it issues are.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
}

/// What a node needs of it.
#[derive(Clone, Debug)]
pub struct Files {
    /// Its certificate, which names it.
    pub certificate: PathBuf,
    /// The key of that, which its owner alone may read.
    pub private_key: PathBuf,
    /// The certificate of the authority.
    pub authority: PathBuf,
}

impl Authority {
    /// A new one, whose certificate is `authority` in a directory that exists.
    ///
    /// # Errors
    /// Those of the file.
    pub fn new(directory: &Path) -> io::Result<Self> {
        let mut parameters = CertificateParams::new(Vec::new()).map_err(io::Error::other)?;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Another name than those it signs: OpenSSL takes them for their own authorities else.
        parameters.distinguished_name.push(DnType::CommonName, "authority of tests");
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let issuer = CertifiedIssuer::self_signed(parameters, key).map_err(io::Error::other)?;
        std::fs::write(directory.join("authority"), issuer.pem())?;
        Ok(Authority { issuer, directory: directory.to_path_buf() })
    }

    /// Issues a certificate with this name in it.
    ///
    /// # Errors
    /// A name that no certificate can have, and those of the files.
    pub fn issue(&self, name: &str) -> io::Result<Files> {
        self.issue_with(name, |_| ())
    }

    /// The same, out of date.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    pub fn issue_expired(&self, name: &str) -> io::Result<Files> {
        self.issue_with(name, |parameters| parameters.not_after = rcgen::date_time_ymd(2001, 1, 1))
    }

    fn issue_with(&self, name: &str, change: fn(&mut CertificateParams)) -> io::Result<Files> {
        let names = vec![name.to_owned()];
        let mut parameters = CertificateParams::new(names).map_err(io::Error::other)?;
        parameters.distinguished_name.push(DnType::CommonName, name);
        change(&mut parameters);
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = parameters.signed_by(&key, &self.issuer).map_err(io::Error::other)?;
        let files = Files::in_directory(&self.directory, name);
        std::fs::write(&files.certificate, certificate.pem())?;
        write_secret(&files.private_key, key.serialize_pem().as_bytes())?;
        Ok(files)
    }
}

impl Files {
    /// Those of a name that an authority issued in a directory.
    pub fn in_directory(directory: &Path, name: &str) -> Self {
        Files {
            certificate: directory.join(format!("{name}.certificate")),
            private_key: directory.join(format!("{name}.key")),
            authority: directory.join("authority"),
        }
    }

    /// The options of a node that name them.
    pub fn options(&self) -> [(&'static str, &Path); 3] {
        [
            ("peer_tls_certificate_file", &self.certificate),
            ("peer_tls_private_key_file", &self.private_key),
            ("peer_tls_authority_file", &self.authority),
        ]
    }
}

/// Writes a file that its owner alone may read.
///
/// # Errors
/// Those of the file.
pub fn write_secret(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)
}
