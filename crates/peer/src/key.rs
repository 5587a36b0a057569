//! The cluster's shared key, and who a node is.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::Tls;

/// Fewest bytes of a key.
pub const KEY_BYTES_MIN: usize = 32;
/// Most bytes of a key file.
pub const KEY_BYTES_MAX: usize = 4096;
/// Most bytes of a node's or a cluster's name.
pub const NAME_BYTES_MAX: usize = 64;

/// Who a node is to its peers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Name of the cluster, 1 to 64 bytes.
    pub cluster: String,
    /// Name of the node in it, 1 to 64 bytes.
    pub node: String,
    /// What all nodes of the cluster know and nobody else.
    pub key: SharedKey,
    /// What connections are encrypted with, and certificates checked by; all nodes have it or none.
    pub tls: Option<Tls>,
}

impl Identity {
    /// Whether the names can be sent.
    ///
    /// # Errors
    /// Which cannot.
    pub(crate) fn check(&self) -> io::Result<()> {
        check_name("cluster", &self.cluster)?;
        check_name("node", &self.node)
    }

    /// Whether these names and that of `peer` can be sent.
    ///
    /// # Errors
    /// Which cannot.
    pub(crate) fn check_name(&self, peer: &str) -> io::Result<()> {
        self.check()?;
        check_name("peer", peer)
    }
}

fn check_name(what: &str, name: &str) -> io::Result<()> {
    if (1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    let length = name.len();
    let message =
        format!("the name of the {what} has {length} bytes; 1 to {NAME_BYTES_MAX} can be sent");
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// The cluster's shared key. Overwritten when the last clone is dropped.
#[derive(Clone)]
pub struct SharedKey(Arc<Secret>);

/// Bytes that do not stay in memory.
struct Secret(Box<[u8]>);

impl Drop for Secret {
    fn drop(&mut self) {
        overwrite(&mut self.0);
    }
}

/// Zeros that the compiler does not leave out.
pub(crate) fn overwrite(bytes: &mut [u8]) {
    for byte in bytes {
        // SAFETY: a reference to a byte is valid for one write.
        unsafe { std::ptr::write_volatile(byte, 0) };
    }
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SharedKey")
    }
}

impl SharedKey {
    /// The key in the file at `path`: all its bytes, as they are.
    ///
    /// # Errors
    /// The file is not a regular file of this user or of root, others may read it, or it has not
    /// 32 to 4096 bytes.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let fail = |fault| KeyError { path: Some(path.to_owned()), fault };
        let mut file = open_secret(path).map_err(fail)?;
        // One byte more than allowed: a file that is too long is seen by it.
        let mut buffer = Secret(vec![0; KEY_BYTES_MAX + 1].into_boxed_slice());
        let length =
            read_up_to(&mut file, &mut buffer.0).map_err(|error| fail(Fault::Io(error)))?;
        Self::from_bytes(&buffer.0[..length]).map_err(|error| fail(error.fault))
    }

    /// The key of these bytes.
    ///
    /// # Errors
    /// They are not 32 to 4096.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&bytes.len()) {
            return Err(KeyError { path: None, fault: Fault::Length(bytes.len()) });
        }
        Ok(Self(Arc::new(Secret(bytes.into()))))
    }

    /// A key for one use only, in one cluster only.
    pub(crate) fn derive(&self, use_of_it: &str, cluster: &str) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(use_of_it);
        hasher.update(&(cluster.len() as u64).to_le_bytes());
        hasher.update(cluster.as_bytes());
        hasher.update(&self.0.0);
        hasher.finalize().into()
    }
}

/// Seals words that nodes of a cluster leave where others can write.
#[derive(Clone)]
pub struct Seal([u8; 32]);

impl Seal {
    /// That of all nodes which know the key.
    pub fn of(identity: &Identity) -> Self {
        Seal(identity.key.derive("tidepool peer 1 seal", &identity.cluster))
    }

    /// What proves that a node of the cluster wrote `words`.
    pub fn of_words(&self, words: &[u8]) -> String {
        blake3::keyed_hash(&self.0, words).to_hex().to_string()
    }

    /// The same, for whoever compares it with what a secret place holds, or stores under it.
    pub fn digest(&self, words: &[u8]) -> [u8; 32] {
        blake3::keyed_hash(&self.0, words).into()
    }

    /// Whether a node of the cluster wrote them.
    pub fn is_of(&self, words: &[u8], seal: &str) -> bool {
        // Compared in a time that does not depend on where they differ.
        let given = blake3::Hash::from_hex(seal.as_bytes());
        given.is_ok_and(|given| blake3::keyed_hash(&self.0, words) == given)
    }
}

/// Opens a file with a secret.
///
/// # Errors
/// It is not a regular file of this user or of root, or others may read it.
pub(crate) fn open_secret(path: &Path) -> Result<File, Fault> {
    // Without O_NONBLOCK a pipe without a writer would never open.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|error| Fault::Io(error.into()))?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(Fault::Io)?;
    if !metadata.is_file() {
        return Err(Fault::NotAFile);
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user && metadata.uid() != 0 {
        return Err(Fault::Owner(metadata.uid()));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(Fault::Mode(metadata.mode() & 0o7777));
    }
    Ok(file)
}

/// Fills `buffer` as far as `file` goes.
fn read_up_to(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// Why a key is not taken, and what to do.
#[derive(Debug)]
pub struct KeyError {
    path: Option<PathBuf>,
    fault: Fault,
}

/// What is wrong with a file that has a secret.
#[derive(Debug)]
pub(crate) enum Fault {
    Io(io::Error),
    NotAFile,
    Owner(u32),
    Mode(u32),
    Length(usize),
}

impl fmt::Display for KeyError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(out, "the key file {} ", path.display())?,
            None => write!(out, "the key ")?,
        }
        write!(out, "{}", self.fault)?;
        match &self.fault {
            Fault::Io(_) | Fault::Length(_) => write!(
                out,
                " Make it with `head -c 32 /dev/urandom`, mode 0600, the same on all nodes."
            ),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Io(error) => write!(out, "cannot be read: {error}."),
            Fault::NotAFile => write!(out, "is not a regular file. Name the file itself."),
            Fault::Owner(owner) => write!(
                out,
                "belongs to user {owner}. Give it to the user that runs the node, or to root."
            ),
            Fault::Mode(mode) => write!(
                out,
                "has mode {mode:04o}: others than its owner can read or write it. Set it to 0600 \
                 with chmod, and make a new key if others could read it."
            ),
            Fault::Length(length) => write!(
                out,
                "has {}{length} bytes; it needs {KEY_BYTES_MIN} to {KEY_BYTES_MAX}.",
                if *length > KEY_BYTES_MAX { "at least " } else { "" }
            ),
        }
    }
}

impl std::error::Error for KeyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::Io(error) => Some(error),
            _ => None,
        }
    }
}
