//! Lists of nodes: what is read, what is refused, and that nothing panics.

use std::io::Write;

use proptest::prelude::*;
use tidepool_cluster::{NodeName, Roster};

fn names(text: &str) -> Vec<String> {
    let roster = Roster::parse(text, 7).expect(text);
    roster.members().iter().map(|member| member.name.to_string()).collect()
}

fn refusal(text: &str) -> String {
    Roster::parse(text, 7).expect_err(text).to_string()
}

#[test]
fn entries_are_host_port_and_name() {
    let roster = Roster::parse("a, b:7000,x=10.0.0.1\ny=[fd00::1]:9,[fd00::2]z", 7);
    assert!(roster.is_err(), "an address in brackets has nothing behind it");
    let roster = Roster::parse("a, b:7000,x=10.0.0.1\ny=[fd00::1]:9,z=[fd00::2]", 7).unwrap();
    let told: Vec<String> = (roster.members().iter())
        .map(|member| format!("{} {} {}", member.name, member.host, member.port))
        .collect();
    let wanted = ["a a 7", "b b 7000", "x 10.0.0.1 7", "y fd00::1 9", "z fd00::2 7"];
    assert_eq!(told, wanted);
    let b = NodeName::new("b").unwrap();
    assert_eq!(roster.get(&b).map(|member| member.port), Some(7000));
    assert_eq!(roster.get(&NodeName::new("c").unwrap()), None);
}

#[test]
fn slurm_expressions_are_expanded() {
    assert_eq!(names("n[1-3,7]"), ["n1", "n2", "n3", "n7"]);
    assert_eq!(names("n[08-11]x"), ["n08x", "n09x", "n10x", "n11x"]);
    assert_eq!(names("r[1-2]n[01-02]"), ["r1n01", "r1n02", "r2n01", "r2n02"]);
    assert_eq!(names("a,n[1,3],b"), ["a", "n1", "n3", "b"]);
    let roster = Roster::parse("n[1-2]=10.0.0.[5-6]:8", 7).unwrap();
    assert_eq!(roster.members()[1].host, "10.0.0.6");
    assert_eq!(roster.members()[1].port, 8);
    assert_eq!(Roster::parse("n[1-65534]", 7).unwrap().members().len(), 65_534);
}

#[test]
fn refusals_name_the_cause() {
    for (text, cause) in [
        ("n[1-", "']' is missing"),
        ("n1]", "'[' is missing"),
        ("n[a-b]", "no range"),
        ("n[3-1]", "backwards"),
        ("n[1-65535]", "more than 65534"),
        ("n[1-99999][1-99999]", "more than 65534"),
        ("n[1-300]m[1-300]", "more than 65534"),
        ("n[0-18446744073709551615]", "more than 65534"),
        ("a,a", "twice"),
        ("a:0", "port"),
        ("a:x", "port"),
        ("fd00::1", "in brackets"),
        ("a b/c", "no name"),
        ("n[1-2]=h", "as many"),
        ("=h", "no name"),
    ] {
        let refusal = refusal(text);
        assert!(refusal.contains(cause), "{text}: {refusal}");
    }
}

#[test]
fn files_have_comments_and_lines() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "# all\na, b # two\n\nn[1-2]").unwrap();
    let roster = Roster::read(file.path(), 7).unwrap();
    assert_eq!(roster.members().len(), 4);
    writeln!(file, "n[").unwrap();
    let refusal = Roster::read(file.path(), 7).unwrap_err().to_string();
    assert!(refusal.contains("line 5"), "{refusal}");
    let missing = Roster::read(std::path::Path::new("/nonexistent/list"), 7).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/list"));
}

proptest! {
    #[test]
    fn no_text_panics(text in "[a-c=:,\\[\\]0-9# \n-]{0,40}") {
        if let Ok(roster) = Roster::parse(&text, 7) {
            for member in roster.members() {
                prop_assert!(NodeName::new(member.name.as_str()).is_ok());
                prop_assert_eq!(roster.get(&member.name), Some(member));
            }
        }
    }
}
