//! The reply to a request. A handler returns a [`Response`] or an errno, and the dispatcher sends
//! it. Only handlers that answer from elsewhere (reads, waiting locks) take the [`Reply`].

use std::io::IoSlice;
use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::protocol::abi::{
    AttrOut, CreateOut, EntryOut, GetxattrOut, InHeader, LockOut, LseekOut, OpenOut, StatfsOut,
    WriteOut,
};
use crate::protocol::device::Device;
use crate::protocol::request::{Answer, Errno};

macro_rules! responses {
    ($($(#[$doc:meta])* $variant:ident($type:ty)),+ $(,)?) => {
        /// What answers a request that succeeded. Structures are sent from where they are, without
        /// allocation.
        #[derive(Debug)]
        pub enum Response {
            /// Nothing but success.
            Empty,
            /// Bytes of any number.
            Bytes(Vec<u8>),
            $($(#[$doc])* $variant($type)),+
        }

        impl Response {
            fn as_bytes(&self) -> &[u8] {
                match self {
                    Response::Empty => &[],
                    Response::Bytes(bytes) => bytes,
                    $(Response::$variant(value) => value.as_bytes()),+
                }
            }
        }
    };
}

responses! {
    /// An inode, of which the kernel counts one look-up more.
    Entry(EntryOut),
    Attributes(AttrOut),
    /// The handle of an open file.
    Opened(OpenOut),
    /// The handle of an open directory.
    OpenedDirectory(OpenOut),
    /// An inode and the handle of its open file.
    Created(CreateOut),
    Written(WriteOut),
    Totals(StatfsOut),
    Offset(LseekOut),
    Lock(LockOut),
    /// The size of an extended attribute or of their list.
    XattrSize(GetxattrOut),
}

/// Hears what a request was answered.
pub trait AnswerWatch: Send + Sync + std::fmt::Debug {
    /// The answer was sent: errno, or 0 with these bytes.
    fn answered(self: Box<Self>, errno: i32, slices: &[IoSlice<'_>]);
}

/// The right and duty to answer one request. Dropped unused, it answers `EIO`.
#[derive(Debug)]
pub struct Reply {
    device: Arc<Device>,
    unique: u64,
    answered: bool,
    /// Present while somebody traces requests.
    watch: Option<Box<dyn AnswerWatch>>,
}

impl Reply {
    /// For the request with this header, whose answer `watch` is to hear.
    pub fn new(
        device: Arc<Device>,
        header: &InHeader,
        watch: Option<Box<dyn AnswerWatch>>,
    ) -> Self {
        Reply { device, unique: header.unique, answered: false, watch }
    }

    /// Number of the request, by which the kernel may interrupt it.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// The device the answer goes to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Answers. Returns whether the kernel took it: the request may have been interrupted, or the
    /// mount be gone.
    pub fn answer(mut self, answer: &Answer<Response>) -> bool {
        match answer {
            Ok(Response::Empty) => self.finish(0, &[]),
            Ok(response) => self.finish(0, &[IoSlice::new(response.as_bytes())]),
            Err(Errno::BLOCKED) => self.finish(libc::EAGAIN, &[]),
            Err(errno) => self.finish(errno.0, &[]),
        }
    }

    /// Answers with a failure.
    pub fn error(self, errno: Errno) {
        self.answer(&Err(errno));
    }

    /// Answers with bytes, taken from where they are. The reply stays with its owner, because
    /// [`tidepool_proto::OpenFile::read_with`] lends them to a closure.
    pub fn data(&mut self, slices: &[IoSlice<'_>]) {
        debug_assert!(!self.answered, "a request is answered once");
        self.finish(0, slices);
    }

    /// Whether [`Reply::data`] has answered.
    pub fn is_answered(&self) -> bool {
        self.answered
    }

    fn finish(&mut self, errno: i32, slices: &[IoSlice<'_>]) -> bool {
        self.answered = true;
        let heard = self.device.send(self.unique, errno, slices).unwrap_or_else(|error| {
            tracing::warn!(%error, unique = self.unique, "answering a request failed");
            // The kernel refused the reply as such; an error is the one thing it always takes.
            if errno == 0 && !slices.is_empty() {
                let _ = self.device.send(self.unique, libc::EIO, &[]);
            }
            false
        });
        self.tell_watch(errno, slices);
        heard
    }

    fn tell_watch(&mut self, errno: i32, slices: &[IoSlice<'_>]) {
        if let Some(watch) = self.watch.take() {
            watch.answered(errno, slices);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.answered {
            let _ = self.device.send(self.unique, libc::EIO, &[]);
            self.tell_watch(libc::EIO, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use zerocopy::{FromBytes, FromZeros};

    use super::*;
    use crate::protocol::abi::OutHeader;

    /// What the kernel's end of a device hears when `reply` has been called.
    fn heard(reply: impl FnOnce(Reply)) -> (OutHeader, Vec<u8>) {
        let (ours, mut kernel) = UnixStream::pair().unwrap();
        let header = InHeader { unique: 7, ..InHeader::new_zeroed() };
        reply(Reply::new(Arc::new(Device::new(ours.into())), &header, None));
        let mut bytes = Vec::new();
        kernel.read_to_end(&mut bytes).unwrap();
        let (header, payload) = OutHeader::read_from_prefix(&bytes).unwrap();
        assert_eq!((header.unique, header.length as usize), (7, bytes.len()), "one message");
        (header, payload.to_vec())
    }

    #[test]
    fn a_reply_that_is_forgotten_answers_eio() {
        assert_eq!(heard(drop).0.error, -libc::EIO);
    }

    #[test]
    fn a_request_is_answered_once() {
        let written = WriteOut { size: 9, padding: 0 };
        let sent = heard(|reply| assert!(reply.answer(&Ok(Response::Written(written)))));
        assert_eq!((sent.0.error, sent.1), (0, written.as_bytes().to_vec()));
        assert_eq!(heard(|reply| assert!(reply.answer(&Ok(Response::Empty)))).0.error, 0);
        assert_eq!(heard(|reply| reply.error(Errno::STALE)).0.error, -libc::ESTALE);
        assert_eq!(heard(|reply| reply.error(Errno::BLOCKED)).0.error, -libc::EAGAIN);
        let read = heard(|mut reply| {
            reply.data(&[IoSlice::new(b"one"), IoSlice::new(b"two")]);
            assert!(reply.is_answered());
        });
        assert_eq!((read.0.error, read.1), (0, b"onetwo".to_vec()));
    }
}
