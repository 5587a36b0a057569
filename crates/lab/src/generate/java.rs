//! The constants that the Java classes are compiled with, made from the table of options.

use std::fmt::Write;

use tidepool_proto::hadoop::{HADOOP_OPTIONS, JAVA_ABI, KEY_PREFIX, key};
use tidepool_proto::option::OptionSpec;

const WIDTH: usize = 92;

/// `TideOptions.java`: a constant a key, and the version of the native calls.
pub fn options() -> String {
    let mut text = String::from(
        "/*\n * Keys of the options of tide:// in a Hadoop configuration. Made by \
         `tidepool generate docs`;\n * change the table of options, not this file. \
         Values and defaults are the native library's.\n */\npackage io.tidepool.hadoop;\n\n\
         import java.util.Set;\n\n\
         /** Keys of `fs.tide.*`. */\n\
         public final class TideOptions {\n\n    /** Version of the native calls. */\n",
    );
    put(&mut text, format_args!("    static final int ABI = {JAVA_ABI};"));
    text += "\n    /** What every key begins with. */\n";
    put(&mut text, format_args!("    static final String PREFIX = \"{KEY_PREFIX}\";"));
    for spec in HADOOP_OPTIONS {
        text.push('\n');
        document(&mut text, spec);
        let constant = spec.name.to_ascii_uppercase();
        let key = key(spec);
        put(&mut text, format_args!("    public static final String {constant} = \"{key}\";"));
    }
    text += "\n    /** Those that each open may choose for itself. */\n";
    let live = HADOOP_OPTIONS.iter().filter(|spec| spec.live);
    let names: Vec<_> = live.map(|spec| spec.name.to_ascii_uppercase()).collect();
    let list = names.join(",\n            ");
    put(
        &mut text,
        format_args!("    static final Set<String> PER_OPEN = Set.of(\n            {list});"),
    );
    text += "\n    private TideOptions() {}\n}\n";
    text
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}

fn document(text: &mut String, spec: &OptionSpec) {
    let mut words = spec.doc.replace('&', "&amp;").replace('<', "&lt;");
    if let Some(default) = spec.default {
        let _ = write!(words, " Default: {default}.");
    }
    if spec.live {
        words += " May be given per open.";
    }
    *text += "    /**\n";
    let mut line = String::from("    ");
    line += " *";
    for word in words.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            put(text, format_args!("{line}"));
            line = String::from("     *");
        }
        line.push(' ');
        line += word;
    }
    put(text, format_args!("{line}"));
    *text += "     */\n";
}
