//! Native methods of `NativeClient.java`: connections, the directory that `tide:///` stands for,
//! and the sizes that an open has by its options. Notices of the library go to Java's log.

use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use jni::objects::{JClass, JLongArray, JObjectArray, JString, JValue};
use jni::refs::Global;
use jni::sys::{jboolean, jlong};
use jni::{Env, JavaVM, jni_sig, jni_str};
use parking_lot::Mutex;
use tidepool_client::{Client, ClientOptions, Notice, socket_to_ask};
use tidepool_pfs::layout::apply_to_new_file;
use tidepool_pfs::{LayoutHints, LayoutOutcome};
use tidepool_proto::config::StripeHints;
use tidepool_proto::trace::Front;
use tidepool_proto::{Error, ErrorKind};

use crate::bridge::{self, Failure};
use crate::handle::{self, Handle};
use crate::node_file;
use crate::panics;
use crate::settings::{self, OpenSettings, Settings};

/// What a handle of `NativeClient` stands for; several handles may share one.
pub(crate) struct ClientHandle {
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    notice: Notice,
    layout_told: AtomicBool,
}

impl std::fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientHandle").field("client", &self.client).finish_non_exhaustive()
    }
}

impl ClientHandle {
    /// Asks for a layout of a file that was just created. What the file system does not honour is
    /// told once.
    pub(crate) fn stripe(
        &self,
        descriptor: BorrowedFd<'_>,
        stripe: &StripeHints,
    ) -> Result<(), Error> {
        if stripe.is_empty() {
            return Ok(());
        }
        let hints = LayoutHints {
            stripe_size_bytes: stripe.stripe_bytes,
            stripe_count: stripe.stripe_count,
            servers: stripe.stripe_servers.clone(),
        };
        match apply_to_new_file(descriptor, &hints)? {
            LayoutOutcome::Applied => {}
            LayoutOutcome::Partly(why) | LayoutOutcome::Ignored(why) => {
                if !self.layout_told.swap(true, Ordering::Relaxed) {
                    (self.notice)(&format!("layout hints are not honoured in full: {why}"));
                }
            }
        }
        Ok(())
    }

    /// Fails if no node answers and going on without one is not wanted.
    pub(crate) fn check_node(&self) -> Result<(), Error> {
        if self.settings.fall_through || self.client.is_answering() {
            return Ok(());
        }
        let detail = "no node answers, and fs.tide.fall.through is false";
        Err(Error::new(ErrorKind::NodeUnavailable, "looking for the node", detail)
            .remedy("start one (`tidepool node start`), or name its socket in fs.tide.socket"))
    }
}

pub(crate) type ClientRef = Handle<Arc<ClientHandle>>;

type Pairs = Vec<(String, String)>;

/// Clients with handles of several users of Hadoop's, by their options. All is done as the user of
/// the process, and a node counts connections by user.
static SHARED: Mutex<Vec<(Pairs, Weak<ClientHandle>)>> = Mutex::new(Vec::new());

/// The client that others have with these options.
fn shared(options: &Pairs) -> Option<Arc<ClientHandle>> {
    let mut shared = SHARED.lock();
    shared.retain(|(_, client)| client.strong_count() > 0);
    shared.iter().find(|(known, _)| known == options).and_then(|(_, client)| client.upgrade())
}

/// Has others find this client, unless they have one by now, which is returned.
fn share(options: Pairs, client: ClientHandle) -> Arc<ClientHandle> {
    if let Some(there) = shared(&options) {
        return there;
    }
    let client = Arc::new(client);
    SHARED.lock().push((options, Arc::downgrade(&client)));
    client
}

/// Connects; options are keys and values in turn. Those that share get one client.
pub(crate) fn connect(
    env: &mut Env<'_>,
    class: JClass<'_>,
    options: JObjectArray<'_, JString<'_>>,
    shares: jboolean,
) -> Result<jlong, Failure> {
    let mut pairs = bridge::pairs(env, &options)?;
    pairs.sort();
    let there = if shares { shared(&pairs) } else { None };
    let client = match there {
        Some(client) => {
            client.check_node()?;
            client
        }
        None if shares => share(pairs.clone(), make(env, &class, pairs)?),
        None => Arc::new(make(env, &class, pairs)?),
    };
    Ok(handle::give(client))
}

fn make(env: &mut Env<'_>, class: &JClass<'_>, options: Pairs) -> Result<ClientHandle, Failure> {
    let (settings, warnings) = settings::understand(options)?;
    let notice = log_of(env, class)?;
    panics::tell(&notice);
    warnings.iter().for_each(|warning| notice(warning));
    let file = node_file::read();
    let socket = settings.socket.clone();
    let environment = || std::env::var_os("TIDEPOOL_SOCKET").filter(|name| !name.is_empty());
    let named = socket.or_else(|| environment().map(PathBuf::from)).or(file.socket);
    // A socket that is named stands for the node there, whichever user runs it.
    let owner = named.as_ref().and_then(|path| std::fs::metadata(path).ok());
    let client = Client::connect(ClientOptions {
        socket: Some(named.unwrap_or_else(socket_to_ask)),
        pfs_root: settings.pfs.clone(),
        pfs_root_without_node: file.pfs,
        trusted_user_id: owner.map(|metadata| metadata.uid()),
        retry_interval: settings.retry_interval,
        request_timeout: settings.request_timeout,
        map_segments: settings.short_circuit,
        notice: Notice::clone(&notice),
        front: Front::Hadoop,
    });
    let layout_told = AtomicBool::new(false);
    let handle = ClientHandle { client, settings, notice, layout_told };
    handle.check_node()?;
    Ok(handle)
}

/// A notice goes to `NativeClient.notice` of the class that connected.
fn log_of(env: &mut Env<'_>, class: &JClass<'_>) -> Result<Notice, Failure> {
    let class: Global<JClass<'static>> = env.new_global_ref(class)?;
    let machine: JavaVM = env.get_java_vm()?;
    Ok(Arc::new(move |line: &str| {
        // Nothing can be done about a log that does not work.
        let _ = machine.attach_current_thread_for_scope(|env| -> jni::errors::Result<()> {
            let line = env.new_string(line)?;
            let class: &JClass<'_> = &class;
            let signature = jni_sig!("(Ljava/lang/String;)V");
            let arguments = [JValue::Object(line.as_ref())];
            env.call_static_method(class, jni_str!("notice"), signature, &arguments)?;
            Ok(())
        });
    }))
}

/// Ends the client where no other handle has it; files that are open stay so.
pub(crate) fn disconnect(
    _env: &mut Env<'_>,
    _class: JClass<'_>,
    client: ClientRef,
) -> Result<(), Failure> {
    // SAFETY: this is the end of the handle.
    drop(unsafe { client.free() });
    Ok(())
}

/// Whether a node answers, as far as is known.
pub(crate) fn is_connected(
    _env: &mut Env<'_>,
    _class: JClass<'_>,
    client: ClientRef,
) -> Result<jboolean, Failure> {
    Ok(client.client.is_connected())
}

/// The directory that `tide:///` stands for.
pub(crate) fn pfs_root<'local>(
    env: &mut Env<'local>,
    _class: JClass<'_>,
    client: ClientRef,
) -> Result<JString<'local>, Failure> {
    let root = client.client.pfs_root().map_err(with_option)?;
    Ok(env.new_string(root.to_string_lossy())?)
}

/// An unknown root, with the words that a user of Hadoop has for it.
fn with_option(error: Error) -> Error {
    if error.kind() != ErrorKind::InvalidInput {
        return error;
    }
    error.remedy(
        "set fs.tide.pfs, which is spark.hadoop.fs.tide.pfs in Spark, to the directory, or start \
         the node",
    )
}

/// Sizes of an open with these options on top of the client's: read buffer, write buffer, split, in
/// bytes.
pub(crate) fn sizes<'local>(
    env: &mut Env<'local>,
    _class: JClass<'_>,
    client: ClientRef,
    options: JObjectArray<'_, JString<'_>>,
) -> Result<JLongArray<'local>, Failure> {
    let open = client.open_settings(env, &options)?;
    let sizes = [open.read_buffer_bytes, open.write_buffer_bytes, open.split_bytes];
    let array = env.new_long_array(sizes.len())?;
    // Bounded by the grammar of the options.
    array.set_region(env, 0, &sizes.map(u64::cast_signed))?;
    Ok(array)
}

impl ClientHandle {
    /// The settings of an open with these options.
    pub(crate) fn open_settings(
        &self,
        env: &mut Env<'_>,
        options: &JObjectArray<'_, JString<'_>>,
    ) -> Result<OpenSettings, Failure> {
        let pairs = bridge::pairs(env, options)?;
        if pairs.is_empty() {
            return Ok(self.settings.open.clone());
        }
        Ok(settings::overlay(&self.settings.open, pairs)?)
    }
}
