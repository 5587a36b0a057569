//! Checks of a Rust file by its syntax: lengths of functions and of the file without its tests,
//! macros and calls that production code does without, glob imports.

use std::path::Path;

use anyhow::{Context, Result};
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::Finding;
use super::limits::Limits;

/// Macros, whether tests may use them, and what to do instead.
const MACROS: [(&str, bool, &str); 7] = [
    ("dbg", false, "remove it"),
    ("todo", false, "write it"),
    ("unimplemented", false, "write it, or refuse with an error that names the remedy"),
    ("println", true, "log with `tracing`; only the command line prints"),
    ("eprintln", true, "log with `tracing`; only the command line prints"),
    ("print", true, "log with `tracing`; only the command line prints"),
    ("eprint", true, "log with `tracing`; only the command line prints"),
];
/// Programs that people read the output of.
const PRINTERS: [&str; 7] = [
    "crates/terminal/",
    "crates/lab/",
    "acceptance/",
    "xtask/",
    "bench/",
    "conformance/",
    "crates/testkit/",
];
/// A library that says on standard error, once, that no node answers; programs can redirect it.
const NOTICE: &str = "crates/client/src/options.rs";

/// Checks one file; `in_tests` tells that only tests include it.
pub fn check(root: &Path, file: &Path, in_tests: bool, limits: &Limits) -> Result<Vec<Finding>> {
    let text = std::fs::read_to_string(root.join(file))?;
    let syntax = syn::parse_file(&text).with_context(|| file.display().to_string())?;
    let mut visitor = Visitor {
        file,
        limits,
        prints: prints(file),
        test_depth: usize::from(in_tests),
        test_lines: 0,
        findings: Vec::new(),
    };
    visitor.visit_file(&syntax);
    let lines = if in_tests { 0 } else { text.lines().count() - visitor.test_lines };
    visitor.findings.extend(limits.judge(file, 0, "file", lines));
    Ok(visitor.findings)
}

fn prints(file: &Path) -> bool {
    let printer = PRINTERS.iter().any(|start| file.starts_with(start));
    let program = ["examples", "build.rs"];
    printer
        || file == Path::new(NOTICE)
        || file.iter().any(|part| program.iter().any(|p| part == *p))
}

struct Visitor<'a> {
    file: &'a Path,
    limits: &'a Limits,
    prints: bool,
    test_depth: usize,
    test_lines: usize,
    findings: Vec<Finding>,
}

impl Visitor<'_> {
    fn find(&mut self, span: Span, what: impl Into<String>) {
        self.findings.push(Finding::at(self.file, span.start().line, what));
    }

    fn function(&mut self, signature: &syn::Signature, whole: Span) {
        let start = signature.fn_token.span.start().line;
        let lines = whole.end().line + 1 - start;
        let name = signature.ident.to_string();
        self.findings.extend(self.limits.judge(self.file, start, &name, lines));
    }

    /// Runs `inner`, within tests if the attributes say so.
    fn within(&mut self, attributes: &[syn::Attribute], inner: impl FnOnce(&mut Self)) -> bool {
        let test = attributes.iter().any(is_test);
        self.test_depth += usize::from(test);
        inner(self);
        self.test_depth -= usize::from(test);
        test
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let outer = self.test_depth == 0;
        let test = self.within(&item.attrs, |this| visit::visit_item_mod(this, item));
        if test && outer {
            self.test_lines += item.span().end().line + 1 - item.span().start().line;
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, item.span());
        self.within(&item.attrs, |this| visit::visit_item_fn(this, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, item.span());
        self.within(&item.attrs, |this| visit::visit_impl_item_fn(this, item));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.within(&item.attrs, |this| visit::visit_item_impl(this, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.function(&item.sig, item.span());
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if self.test_depth == 0 && call.method == "unwrap" && call.args.is_empty() {
            let what = "`unwrap` in production code; pass the error on with `?`, or `expect` \
                        with the reason why it cannot happen";
            self.find(call.method.span(), what);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let name = call.path.segments.last().map(|segment| segment.ident.to_string());
        for (banned, in_tests, remedy) in MACROS {
            let excused = in_tests && (self.test_depth > 0 || self.prints);
            if name.as_deref() == Some(banned) && !excused {
                self.find(call.path.span(), format!("`{banned}!`: {remedy}"));
            }
        }
        visit::visit_macro(self, call);
    }

    fn visit_use_glob(&mut self, glob: &'ast syn::UseGlob) {
        if self.test_depth == 0 {
            self.find(glob.span(), "glob import; name what you use");
        }
    }
}

/// Whether an attribute makes its item part of the tests.
pub fn is_test(attribute: &syn::Attribute) -> bool {
    if attribute.path().is_ident("test") {
        return true;
    }
    let syn::Meta::List(list) = &attribute.meta else { return false };
    // `cfg(test)`, `cfg(all(test, ...))`, `cfg(any(test, ...))`, but not `cfg(not(test))`.
    let condition = list.tokens.to_string().replace(' ', "");
    attribute.path().is_ident("cfg")
        && !condition.contains("not(test")
        && condition.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "test")
}

#[cfg(test)]
mod tests {
    use super::{Limits, check};

    fn findings(code: &str, in_tests: bool) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        let limits_path = directory.path().join("tidy.toml");
        std::fs::write(&limits_path, "").unwrap();
        let limits = Limits::load(&limits_path).unwrap();
        std::fs::write(directory.path().join("a.rs"), code).unwrap();
        let found = check(directory.path(), "a.rs".as_ref(), in_tests, &limits).unwrap();
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn production_code_does_without_and_tests_may() {
        let code = "fn f() { x.unwrap(); println!(); use a::*; }";
        assert_eq!(findings(code, false).len(), 3);
        assert_eq!(findings(code, true).len(), 0);
        let tests = format!("#[cfg(test)]\nmod tests {{ {code} }}");
        assert_eq!(findings(&tests, false).len(), 0);
        let not_tests = format!("#[cfg(not(test))]\nmod tests {{ {code} }}");
        assert_eq!(findings(&not_tests, false).len(), 3);
        assert_eq!(findings("fn f() { dbg!(1); }", true).len(), 1);
    }

    #[test]
    fn long_functions_are_found_with_their_line() {
        let body = "    f();\n".repeat(69);
        let code = format!("//! Doc.\nfn long() {{\n{body}}}\n");
        assert!(findings(&code, false)[0].starts_with("a.rs:2: `long` has 71 lines"));
        let body = "    f();\n".repeat(68);
        assert!(findings(&format!("fn long() {{\n{body}}}\n"), false).is_empty());
    }
}
