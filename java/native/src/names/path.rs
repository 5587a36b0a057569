//! Converts names of Hadoop to paths of the parallel file system. Java's strings cannot hold every
//! name: a byte that is not part of UTF-8 is a lone surrogate there, from U+DC80 to U+DCFF (as in
//! Python's `surrogateescape`), and comes back as that byte. Touches no file.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use jni::Env;
use jni::objects::JString;
use tidepool_client::Client;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::bridge::Failure;
use crate::client::ClientHandle;

/// A name below `tide:///`.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The path on the parallel file system.
    pub(crate) lower: PathBuf,
    /// The name as Hadoop has it, for messages.
    pub(crate) name: String,
    /// It is `/`.
    pub(crate) is_root: bool,
}

impl Place {
    /// The place of a name that Java gave.
    pub(crate) fn of(
        env: &Env<'_>,
        client: &Client,
        name: &JString<'_>,
    ) -> std::result::Result<Place, Failure> {
        let bytes = bytes_of(env, name)?;
        Ok(Place::new(client.pfs_root()?, OsStr::from_bytes(&bytes))?)
    }

    /// The place of `name`, an absolute path below `tide:`, in the directory `root`.
    fn new(root: &Path, name: &OsStr) -> Result<Place> {
        let mut lower = root.to_path_buf();
        let mut is_root = true;
        for component in Path::new(name).components() {
            match component {
                Component::Normal(part) => {
                    lower.push(part);
                    is_root = false;
                }
                Component::RootDir | Component::CurDir => {}
                Component::ParentDir | Component::Prefix(_) => {
                    return Err(invalid(name, "`..` has no meaning in a tide name"));
                }
            }
        }
        Ok(Place { lower, name: name.to_string_lossy().into_owned(), is_root })
    }

    /// The directory that the name is in; `/` is its own.
    pub(crate) fn parent(&self) -> Place {
        if self.is_root {
            return self.clone();
        }
        let parent = |path: &Path| path.parent().map(Path::to_path_buf).unwrap_or_default();
        let name = parent(Path::new(&self.name)).to_string_lossy().into_owned();
        let is_root = name == "/";
        Place { lower: parent(&self.lower), name, is_root }
    }
}

/// Runs the body of a native method on the name that Java gave. What fails in it carries the name,
/// and what can be done about it.
pub(crate) fn at_place<'local, T, E: Into<Failure>>(
    env: &mut Env<'local>,
    client: &ClientHandle,
    name: &JString<'_>,
    body: impl FnOnce(&mut Env<'local>, &Client, &Place) -> std::result::Result<T, E>,
) -> std::result::Result<T, Failure> {
    let place = Place::of(env, &client.client, name)?;
    body(env, &client.client, &place).map_err(|error| error.into().at(&place.name))
}

fn invalid(name: &OsStr, detail: &str) -> Error {
    let operation = format!("reading the name {}", name.display());
    Error::new(ErrorKind::InvalidInput, operation, detail).remedy("write tide:///directory/file")
}

/// The bytes of a name that Java gave.
pub(crate) fn bytes_of(env: &Env<'_>, name: &JString<'_>) -> std::result::Result<Vec<u8>, Failure> {
    let characters = name.mutf8_chars(env)?;
    Ok(decode(characters.to_bytes())?)
}

/// A name as bytes, out of the modified UTF-8 of a JVM: there NUL is two bytes, and characters
/// beyond U+FFFF are pairs of surrogates of three bytes each.
fn decode(modified: &[u8]) -> Result<Vec<u8>> {
    if modified.is_ascii() {
        return Ok(modified.to_vec());
    }
    let refused = |detail| Err(invalid(&OsString::from_vec(modified.to_vec()), detail));
    let mut bytes = Vec::with_capacity(modified.len());
    let mut rest = modified;
    while let [first, after @ ..] = rest {
        let surrogate = |bytes: &[u8]| match bytes {
            [0xed, second @ 0xa0..=0xbf, third, ..] => {
                Some(0xd000 | (u32::from(second & 0x3f) << 6) | u32::from(third & 0x3f))
            }
            _ => None,
        };
        if rest.starts_with(&[0xc0, 0x80]) {
            return refused("a name has no NUL");
        }
        match (surrogate(rest), rest.get(3..).and_then(surrogate)) {
            (Some(high @ 0xd800..=0xdbff), Some(low @ 0xdc00..=0xdfff)) => {
                let code = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
                bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &rest[6..];
            }
            (Some(escaped @ 0xdc80..=0xdcff), _) => {
                bytes.push((escaped & 0xff) as u8);
                rest = &rest[3..];
            }
            (Some(_), _) => return refused("half of a character is no name"),
            (None, _) => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_the_root() {
        let root = Path::new("/pfs");
        let place = |name: &str| Place::new(root, OsStr::new(name));
        assert_eq!(place("/a//./b").unwrap().lower, Path::new("/pfs/a/b"));
        assert!(place("/").unwrap().is_root);
        assert_eq!(place("/").unwrap().parent().lower, root);
        assert!(place("/a").unwrap().parent().is_root);
        for name in ["/..", "/a/../../etc/passwd", "/../pfs2"] {
            assert_eq!(place(name).unwrap_err().kind(), ErrorKind::InvalidInput, "{name}");
        }
    }

    #[test]
    fn every_name_of_the_pfs_can_be_said_by_java() {
        assert_eq!(decode("grün".as_bytes()).unwrap(), "grün".as_bytes());
        let smile = [b'/', 0xed, 0xa0, 0xbd, 0xed, 0xb8, 0x80];
        assert_eq!(decode(&smile).unwrap(), "/\u{1f600}".as_bytes());
        let escaped = [b'/', 0xed, 0xb3, 0xbf, b'a'];
        assert_eq!(decode(&escaped).unwrap(), b"/\xffa");
        assert!(decode(&[b'/', 0xc0, 0x80]).is_err(), "NUL");
        assert!(decode(&[b'/', 0xed, 0xa0, 0xbd, b'a']).is_err(), "a lone high surrogate");
        assert!(decode(&[b'/', 0xed, 0xb0, 0x80]).is_err(), "U+DC00 stands for no byte");
    }
}
