//! Bad input and poor machines, on the real binary: each case ends with a message that names cause
//! and remedy and with the documented exit code, and leaves nothing behind; or it just works.

mod files;
mod machine;
mod pfs;
mod start;

use std::process::Output;

use tidepool_testkit::product::{Node, NodeSpec, is_mounted, said};

fn spec(arguments: &[&str]) -> NodeSpec {
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    NodeSpec { arguments, ..NodeSpec::default() }
}

fn node_with(arguments: &[&str]) -> Node {
    Node::start(spec(arguments)).expect("a node starts")
}

/// A start that must fail: with this exit code, with all these words, and without remains.
fn assert_refused(node: &Node, output: &Output, code: i32, words: &[&str]) {
    let text = said(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for word in words {
        assert!(text.contains(word), "no `{word}` in: {text}");
    }
    // `while doing something: what: cause (remedy)`
    assert!(text.contains("while "), "no operation in: {text}");
    assert!(text.trim_end().ends_with(')'), "no remedy in: {text}");
    assert!(!text.contains("panicked"), "{text}");
    assert!(!is_mounted(node.mount()), "something is still mounted");
    let left = std::fs::read_dir(node.directory()).unwrap().map(|entry| entry.unwrap().file_name());
    let expected = ["pfs", "mount", "node.toml", "node.sock.log", "cgroup"];
    let left: Vec<_> = left.filter(|name| !expected.iter().any(|known| name == known)).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// Prepares a node, tries to start it, and expects a refusal.
fn refuse(spec: NodeSpec, change: impl FnOnce(&Node), code: i32, words: &[&str]) {
    let node = Node::prepare(spec).unwrap();
    change(&node);
    let output = node.try_start().unwrap();
    assert_refused(&node, &output, code, words);
}
