//! An authority that signs certificates of nodes, in files.
#![allow(dead_code, reason = "each program uses a part of it")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tidepool_peer::{Tls, TlsFiles};

/// Its certificate and what it issued.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).expect("parameters");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(parameters, key).expect("an authority");
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("authority"), issuer.pem()).expect("a file");
        Authority { issuer, directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The files of a certificate with this name in it, which is out of date if that is asked for.
    pub fn issue(&self, name: &str, is_expired: bool) -> TlsFiles {
        let mut parameters = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        if is_expired {
            parameters.not_after = rcgen::date_time_ymd(2001, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = parameters.signed_by(&key, &self.issuer).expect("a certificate");
        let files = TlsFiles {
            certificate: self.path(&format!("{name}.certificate")),
            private_key: self.path(&format!("{name}.key")),
            authority: self.path("authority"),
        };
        std::fs::write(&files.certificate, certificate.pem()).expect("a file");
        write_secret(&files.private_key, &key.serialize_pem());
        files
    }

    /// What a node with a certificate of its name has.
    pub fn tls(&self, node: &str) -> Tls {
        Tls::load(&self.issue(node, false), node).expect("a right certificate")
    }
}

pub fn write_secret(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a file");
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("a mode");
}
