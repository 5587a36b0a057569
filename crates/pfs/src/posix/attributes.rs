//! [`Attributes`]: whether the file system has attributes of users, as its answers tell.
//!
//! One that gave, or denied, an attribute of a file has them. Where it says later that it does not
//! (a client in user space that lost its server may), that is an error: what such an attribute
//! tells would be taken for absent.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Attributes {
    are_there: AtomicBool,
}

impl Attributes {
    /// The answer to a question for an attribute.
    pub fn judge<T>(&self, answer: io::Result<T>) -> io::Result<T> {
        match answer {
            Ok(value) => {
                if !self.are_there.load(Ordering::Relaxed) {
                    self.are_there.store(true, Ordering::Relaxed);
                }
                Ok(value)
            }
            Err(error) if self.are_there.load(Ordering::Relaxed) && is_unsupported(&error) => {
                Err(Errno::IO.into())
            }
            Err(error) => Err(error),
        }
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(tidepool_proto::stub::is_without_attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_had_attributes_is_not_believed_to_have_none() {
        let attributes = Attributes::default();
        let said = |errno: Errno| {
            let answer = attributes.judge(Err::<(), _>(errno.into()));
            Errno::from_io_error(&answer.unwrap_err()).unwrap()
        };
        assert_eq!(said(Errno::OPNOTSUPP), Errno::OPNOTSUPP);
        assert_eq!(said(Errno::ACCESS), Errno::ACCESS);
        attributes.judge(Ok(())).unwrap();
        assert_eq!((said(Errno::OPNOTSUPP), said(Errno::ACCESS)), (Errno::IO, Errno::ACCESS));
    }
}
