//! The native methods of each Java class, one line a method, and their registration with the JVM.
//!
//! `native_method!` checks each line against its Rust function when the library is compiled; the
//! JVM checks name and signature against the class when the library is loaded. A test compares the
//! lines with the declarations in Java.

use jni::objects::{JClass, JObjectArray, JPrimitiveArray, JString};
use jni::strings::JNIStr;
use jni::sys::{jboolean, jbyte, jint, jlong};
use jni::{Env, NativeMethod, jni_str, native_method};

use crate::borrows::{self, LoanRef};
use crate::bridge::{Failure, Throw};
use crate::client::{self, ClientRef};
use crate::file::{self, FileRef, with_file};
use crate::names::{
    ListingRef, at_place, attributes, change, directory, locate, make, remove, rename, status, walk,
};
use crate::{exceptions, library, reads};

/// `native_method!` with what all of ours have in common.
macro_rules! method {
    ($($properties:tt)*) => {
        native_method! {
            // Sound: a handle has the layout of a `long`, and Java passes those that it was given
            // for this type and has not freed; see `NativeHandle.java`.
            type_map = {
                unsafe ClientRef => long,
                unsafe FileRef => long,
                unsafe ListingRef => long,
                unsafe LoanRef => long,
            },
            $($properties)*
        }
    };
}

/// The Rust type of a Java type in a line of `natives!`.
macro_rules! java {
    () => { () };
    ([JString]) => { JObjectArray<'local, JString<'local>> };
    ([$primitive:ident]) => { JPrimitiveArray<'local, $primitive> };
    (JString) => { JString<'local> };
    ($primitive:ident) => { $primitive };
}

/// The native methods of one Java class. The word before `fn` says what the Rust function is given
/// in front of the arguments in the line:
///
/// - `plain`: the environment and the class.
/// - `place`: a client and a place, where Java passes a client and a name.
/// - `env_place`: the environment, a client and a place.
/// - `file`: an open file, where Java passes its handle.
/// - `raw`: the environment as the JVM passes it, and the class. Nothing is set up before, and the
///   function keeps its panics from the JVM itself.
macro_rules! natives {
    ($($kind:ident fn $module:ident::$name:ident $arguments:tt $(-> $returned:tt)?;)*) => {
        &[$(natives!(@$kind $module $name $arguments $(-> $returned)?)),*]
    };
    (@plain $module:ident $name:ident $arguments:tt $(-> $returned:tt)?) => {
        method!(static fn $name $arguments $(-> $returned)?,
            fn = $module::$name, error_policy = Throw)
    };
    (@raw $module:ident $name:ident $arguments:tt $(-> $returned:tt)?) => {
        // The check would cost each read; a test finds what Java does not declare as static.
        method!(static raw fn $name $arguments $(-> $returned)?, fn = $module::$name,
            abi_check = UnsafeNever)
    };
    (@place $module:ident $name:ident ($($argument:ident: $type:tt),*) $(-> $returned:tt)?) => {
        natives!(@through $name(client: ClientRef, name: JString $(, $argument: $type)*)
            ($($returned)?) |env| at_place(env, &client, &name, |_, client, place| {
                $module::$name(client, place $(, $argument)*)
            }))
    };
    (@env_place $module:ident $name:ident ($($argument:ident: $type:tt),*) $(-> $returned:tt)?) => {
        natives!(@through $name(client: ClientRef, name: JString $(, $argument: $type)*)
            ($($returned)?) |env| at_place(env, &client, &name, |env, client, place| {
                $module::$name(env, client, place $(, $argument)*)
            }))
    };
    (@file $module:ident $name:ident ($($argument:ident: $type:tt),*) $(-> $returned:tt)?) => {
        natives!(@through $name(file: FileRef $(, $argument: $type)*) ($($returned)?)
            |_env| with_file(&file, |file| $module::$name(file $(, $argument)*)))
    };
    (@through $name:ident($($argument:ident: $type:tt),*) ($($returned:tt)?)
        |$env:ident| $body:expr) => {{
        fn call<'local>(
            $env: &mut Env<'local>,
            _class: JClass<'local>,
            $($argument: java!($type)),*
        ) -> Result<java!($($returned)?), Failure> {
            $body
        }
        method!(static fn $name($($argument: $type),*) $(-> $returned)?,
            fn = call, error_policy = Throw)
    }};
}

/// The version of these native methods. It alone must keep its form forever: any release of the
/// classes asks any release of the library for it.
const _: NativeMethod<'_> = native_method! {
    java_type = io.tidepool.hadoop.NativeLibrary,
    static raw fn abi() -> jint,
    fn = library::abi,
    export = "Java_io_tidepool_hadoop_NativeLibrary_abi",
    // What the check takes is not looked up yet.
    abi_check = UnsafeNever,
};

const _: NativeMethod<'_> = native_method! {
    java_type = io.tidepool.hadoop.NativeLibrary,
    static fn prepare(),
    fn = prepare,
    error_policy = Throw,
    export = "Java_io_tidepool_hadoop_NativeLibrary_prepare",
    abi_check = UnsafeNever,
};

/// A Java class and its native methods.
type Natives = (&'static JNIStr, &'static [NativeMethod<'static>]);

const LIBRARY: Natives = (
    jni_str!("io/tidepool/hadoop/NativeLibrary"),
    natives! {
        plain fn library::panic(message: JString);
    },
);

const CLIENT: Natives = (
    jni_str!("io/tidepool/hadoop/NativeClient"),
    natives! {
        plain fn client::connect(options: [JString], shares: jboolean) -> jlong;
        plain fn client::disconnect(client: ClientRef);
        plain fn client::is_connected(client: ClientRef) -> jboolean;
        plain fn client::pfs_root(client: ClientRef) -> JString;
        plain fn client::sizes(client: ClientRef, options: [JString]) -> [jlong];
    },
);

const FILE: Natives = (
    jni_str!("io/tidepool/hadoop/NativeFile"),
    natives! {
        plain fn file::open(client: ClientRef, path: JString, flags: jint, mode_bits: jint,
            options: [JString], reads: [jlong]) -> jlong;
        file fn file::finish();
        plain fn file::release(file: FileRef);
        raw fn file::end_waits(file: FileRef);
        plain fn file::size(file: FileRef) -> jlong;
        file fn file::size_at_open() -> jlong;
        plain fn file::levels(file: FileRef) -> [jlong];
        file fn file::set_read_ahead(bytes_max: jlong);
        file fn file::set_keep(keep: jboolean);
        file fn file::may_be_lost() -> jboolean;
        file fn file::prefetch(offset: jlong, length: jlong);
        plain fn reads::read_ranges_held(file: FileRef, offsets: [jlong], targets: [JObject],
            places: [jint]);
        raw fn reads::read_direct(file: FileRef, offset: jlong, buffer: JByteBuffer,
            position: jint, length: jint, waits: jboolean) -> jint;
        raw fn reads::read_array(file: FileRef, offset: jlong, array: [jbyte],
            position: jint, length: jint, waits: jboolean) -> jint;
        plain fn file::write(file: FileRef, offset: jlong, buffer: JByteBuffer,
            position: jint, length: jint);
        file fn file::sync();
    },
);

const LOAN: Natives = (
    jni_str!("io/tidepool/hadoop/NativeLoan"),
    natives! {
        plain fn borrows::lend(file: FileRef, offset: jlong, length: jint, loan: [jlong],
            file_class: JClass) -> JByteBuffer;
        plain fn borrows::give_back(loan: LoanRef);
        plain fn borrows::unmap(loan: LoanRef);
    },
);

const NAMES: Natives = (
    jni_str!("io/tidepool/hadoop/NativeNames"),
    natives! {
        env_place fn status::status(follow: jboolean, record: [jbyte]) -> jint;
        env_place fn directory::list(entries_max: jint) -> [jbyte];
        plain fn directory::list_more(listing: ListingRef, entries_max: jint) -> [jbyte];
        plain fn directory::list_close(listing: ListingRef);
        place fn make::make_directories(mode: jint);
        place fn make::make_directory(mode: jint);
        env_place fn rename::move_to(target: JString) -> jboolean;
        env_place fn rename::rename(target: JString, overwrite: jboolean);
        place fn remove::remove(recursive: jboolean) -> jboolean;
        place fn change::set_mode(mode: jint);
        place fn change::set_owner(user_id: jlong, group_id: jlong);
        place fn change::set_times(modified_ms: jlong, accessed_ms: jlong);
        plain fn change::make_link(client: ClientRef, target: JString, target_is_tide: jboolean,
            link: JString);
        env_place fn attributes::link_target() -> [jbyte];
        place fn change::truncate(length: jlong);
        env_place fn walk::sums() -> [jlong];
        env_place fn attributes::totals() -> [jlong];
        place fn attributes::access(bits: jint);
        env_place fn attributes::attribute(attribute: JString) -> [jbyte];
        env_place fn attributes::attributes() -> [JString];
        env_place fn attributes::set_attribute(attribute: JString, value: [jbyte], how: jint);
        plain fn locate::locate(client: ClientRef, paths: [JString], ranges: [jlong],
            found: [jint]) -> [JString];
        plain fn attributes::name_of(number: jint, is_group: jboolean) -> JString;
        plain fn attributes::number_of(name: JString, is_group: jboolean) -> jlong;
    },
);

/// Gets ready for calls that fail, and registers all other native methods. Called once a class
/// loader, before any of them.
fn prepare(env: &mut Env<'_>, _class: JClass<'_>) -> Result<(), Failure> {
    exceptions::prepare(env)?;
    register(env)
}

/// Registers all of them with the classes of the class loader that loads the library.
fn register(env: &mut Env<'_>) -> Result<(), Failure> {
    for (class, methods) in [LIBRARY, CLIENT, FILE, LOAN, NAMES] {
        let class = env.find_class(class)?;
        // SAFETY: `native_method!` made each function for its signature, and all are static, as a
        // test compares with Java.
        unsafe { env.register_native_methods(class, methods) }?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::ffi::CStr;
    use std::path::Path;

    /// Methods that are exported and not registered.
    const EXPORTED: [&str; 2] = ["NativeLibrary.abi()I", "NativeLibrary.prepare()V"];

    /// The descriptor of a type as Java writes it in these classes.
    fn descriptor(java: &str) -> String {
        if let Some(element) = java.strip_suffix("[]") {
            return format!("[{}", descriptor(element));
        }
        let simple = match java.split('<').next().unwrap() {
            "void" => "V",
            "boolean" => "Z",
            "byte" => "B",
            "int" => "I",
            "long" => "J",
            "ByteBuffer" => "Ljava/nio/ByteBuffer;",
            lang => return format!("Ljava/lang/{lang};"),
        };
        simple.to_owned()
    }

    /// Adds the static native methods that the source of a class declares.
    fn declared(class: &str, source: &str, into: &mut BTreeSet<String>) {
        let source = source.split_whitespace().collect::<Vec<_>>().join(" ");
        for declaration in source.split(" static native ").skip(1) {
            let (head, rest) = declaration.split_once('(').unwrap();
            let (returned, name) = head.split_once(' ').unwrap();
            let (arguments, _) = rest.split_once(')').unwrap();
            let types = arguments.split(',').filter_map(|it| it.trim().split(' ').next());
            let types: String = types.filter(|it| !it.is_empty()).map(descriptor).collect();
            into.insert(format!("{class}.{name}({types}){}", descriptor(returned)));
        }
    }

    #[test]
    fn every_native_method_that_java_declares_is_here_and_no_other() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../hadoop/src/main/java/io/tidepool/hadoop");
        let mut in_java = BTreeSet::new();
        for file in std::fs::read_dir(sources).unwrap() {
            let path = file.unwrap().path();
            let source = std::fs::read_to_string(&path).unwrap();
            declared(path.file_stem().unwrap().to_str().unwrap(), &source, &mut in_java);
        }
        let mut here = BTreeSet::from(EXPORTED.map(String::from));
        for (class, methods) in [LIBRARY, CLIENT, FILE, LOAN, NAMES] {
            let class = class.to_str().rsplit('/').next().unwrap().to_owned();
            for method in methods {
                // SAFETY: it is a transparent wrapper; its texts end with NUL and live forever.
                let [name, signature] = unsafe {
                    let method = &*std::ptr::from_ref(method).cast::<jni::sys::JNINativeMethod>();
                    [method.name, method.signature].map(|text| CStr::from_ptr(text))
                };
                let (name, signature) = (name.to_str().unwrap(), signature.to_str().unwrap());
                here.insert(format!("{class}.{name}{signature}"));
            }
        }
        assert_eq!(here, in_java);
    }
}
