//! An authority that signs certificates of nodes, in files that go with it.
#![allow(dead_code, reason = "each program uses a part of it")]

use std::path::PathBuf;

use tempfile::TempDir;
use tidepool_peer::{Tls, TlsFiles};

/// Its certificate and what it issued.
pub struct Authority {
    authority: tidepool_test_authority::Authority,
    directory: TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = tidepool_test_authority::Authority::new(directory.path());
        Authority { authority: authority.expect("an authority"), directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The files of a certificate with this name in it, which is out of date if that is asked for.
    pub fn issue(&self, name: &str, is_expired: bool) -> TlsFiles {
        let issued = match is_expired {
            true => self.authority.issue_expired(name),
            false => self.authority.issue(name),
        };
        let issued = issued.expect("a certificate");
        TlsFiles {
            certificate: issued.certificate,
            private_key: issued.private_key,
            authority: issued.authority,
        }
    }

    /// What a node with a certificate of its name has.
    pub fn tls(&self, node: &str) -> Tls {
        Tls::load(&self.issue(node, false), node).expect("a right certificate")
    }
}
