//! The program, with a shell script in the place of Java.

use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// A script that says it is ready, and then does this with each `$number`, `$verb` and `$bytes`.
fn answering(body: &str) -> String {
    format!("echo ready {VERSION}\nwhile read number verb bytes; do\n{body}\ndone\n")
}

fn entry(place: &TempDir, script: &str) -> JavaConfiguration {
    let program = place.path().join("java");
    std::fs::write(&program, format!("#!/bin/sh\n{script}")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let jar = place.path().join("stores.jar");
    std::fs::write(&jar, "").unwrap();
    JavaConfiguration {
        class_path: "/site/*".into(),
        program: Some(program),
        options: vec!["-Dof=site".into()],
        jar: Some(jar),
    }
}

fn start(script: &str) -> (Result<JavaProgram>, TempDir) {
    let place = tempfile::tempdir().unwrap();
    (JavaProgram::start("s", &entry(&place, script), &["alluxio"]), place)
}

fn started(script: &str) -> (JavaProgram, TempDir) {
    let (program, place) = start(script);
    (program.unwrap(), place)
}

fn soon(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds)
}

fn resize(program: &JavaProgram, bytes: u64) -> Result<u64> {
    program.resize(bytes, Instant::now() + LONG)
}

/// Skips the pause after a death.
fn wake(program: &JavaProgram) {
    program.state.lock().rests = None;
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "{what} never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_command_is_told_the_capacity_and_numbers_fit_java() {
    let (program, _place) = started(&answering("echo $number done $bytes"));
    assert_eq!(resize(&program, 5).unwrap(), 5);
    assert_eq!(resize(&program, u64::MAX).unwrap(), i64::MAX as u64);
    assert!(program.is_running());
}

#[test]
fn it_is_started_with_a_small_heap_and_the_class_path_of_the_site() {
    let (program, place) = started(&format!("echo $@ >&2\n{}", answering("exit 1")));
    let words = resize(&program, 1).unwrap_err().to_string();
    let jar = place.path().join("stores.jar");
    assert!(words.contains("-Xmx64m"), "{words}");
    let end = format!("-Dof=site -cp {}:/site/* {MAIN} alluxio", jar.display());
    assert!(words.contains(&end), "{words}");
}

#[test]
fn an_answer_that_comes_late_is_not_taken_for_the_next() {
    let body = "[ $number = 1 ] && sleep 0.4\necho $number done $bytes";
    let (program, _place) = started(&answering(body));
    assert_eq!(program.resize(7, soon(20)).unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(program.is_running(), "what it holds back is kept");
    assert_eq!(resize(&program, 9).unwrap(), 9);
}

#[test]
fn one_that_ended_says_why_and_is_started_again_after_a_pause() {
    let body = "[ $bytes = 13 ] && { echo out of luck >&2; exit 3; }\necho $number done $bytes";
    let (program, _place) = started(&answering(body));
    let error = resize(&program, 13).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreUnavailable);
    assert!(error.detail().contains("out of luck"), "{error}");
    assert!(!program.is_running());
    let error = resize(&program, 1).unwrap_err();
    assert!(error.detail().contains("out of luck"), "in the pause: {error}");
    assert!(!program.is_running(), "not started at once");
    wake(&program);
    assert_eq!(resize(&program, 1).unwrap(), 1);
    assert!(program.is_running());
}

#[test]
fn one_that_ends_by_itself_is_noticed_without_a_command() {
    let wait = "until [ -e $0.end ]; do sleep 0.01; done";
    let (program, place) = started(&format!("echo ready {VERSION}\n{wait}\n"));
    assert!(program.is_running());
    std::fs::write(place.path().join("java.end"), "").unwrap();
    until("its end", || !program.is_running());
}

#[test]
fn one_that_hangs_is_killed_and_started_again() {
    let (mut program, place) =
        started(&format!("echo $$ > $0.pid\n{}", answering("[ $bytes = 13 ] && exec sleep 600")));
    program.silence_max = Duration::from_millis(1);
    let error = program.resize(13, soon(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreUnavailable, "{error}");
    assert!(error.detail().contains("killed"), "{error}");
    let pid = std::fs::read_to_string(place.path().join("java.pid")).unwrap();
    until("its end", || !Path::new("/proc").join(pid.trim()).exists());
    wake(&program);
    assert!(program.resize(1, soon(50)).is_err());
    let other = std::fs::read_to_string(place.path().join("java.pid")).unwrap();
    assert_ne!(pid, other, "another process");
}

#[test]
fn it_does_not_outlive_its_owner() {
    // It does not read, so that the end of its input is nothing to it.
    let script = format!("echo $$ > $0.pid\necho ready {VERSION}\nexec sleep 600\n");
    let (program, place) = started(&script);
    let pid = std::fs::read_to_string(place.path().join("java.pid")).unwrap();
    drop(program);
    until("its end", || !Path::new("/proc").join(pid.trim()).exists());
}

/// In a process of its own, which starts a program and waits to be killed.
const OWNER: &str = "TIDEPOOL_TEST_OWNER";

#[test]
fn it_ends_with_an_owner_that_is_killed() {
    let script = format!("echo $$ > $0.pid\necho ready {VERSION}\nexec sleep 600\n");
    if let Some(place) = std::env::var_os(OWNER) {
        let place = tempfile::Builder::new().prefix("owner").tempdir_in(place).unwrap();
        let program = JavaProgram::start("s", &entry(&place, &script), &[]).unwrap();
        std::thread::sleep(LONG);
        return drop(program);
    }
    let place = tempfile::tempdir().unwrap();
    let name = "java_program::tests::it_ends_with_an_owner_that_is_killed";
    let mut owner = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(OWNER, place.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let file = || {
        let made = std::fs::read_dir(place.path()).unwrap().flatten().next()?;
        std::fs::read_to_string(made.path().join("java.pid")).ok().filter(|pid| !pid.is_empty())
    };
    until("the program", || file().is_some());
    let pid = file().unwrap();
    owner.kill().unwrap();
    owner.wait().unwrap();
    let status = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    until("its end", || status().map_or(true, |text| text.contains(") Z ")));
}

#[test]
fn what_the_store_answers_has_its_kind_and_a_remedy() {
    let kinds = [
        ("classes", ErrorKind::InvalidInput, "class_path"),
        ("denied", ErrorKind::PermissionDenied, "options"),
        ("invalid", ErrorKind::InvalidInput, "entry"),
        ("unsupported", ErrorKind::Unsupported, "leave"),
        ("unavailable", ErrorKind::StoreUnavailable, "start the store"),
    ];
    for (kind, expected, remedy) in kinds {
        let (refused, _place) = start(&format!("echo refused {kind} so it is\nread line\n"));
        let failed = format!("echo $number failed {kind} so it is");
        let (program, _other) = started(&answering(&failed));
        for error in [refused.err().unwrap(), resize(&program, 1).unwrap_err()] {
            assert_eq!(error.kind(), expected, "{error}");
            assert!(error.detail().contains("so it is"), "{error}");
            assert!(error.remedy_text().unwrap().contains(remedy), "{error}");
        }
    }
}

#[test]
fn what_is_no_program_of_this_release_is_refused() {
    let refusal = |script: &str| start(script).0.err().unwrap();
    let other = refusal("echo ready 0.0.0-other\nread line\n");
    assert_eq!(other.kind(), ErrorKind::InvalidInput);
    assert!(other.detail().contains("0.0.0-other"), "{other}");
    assert_eq!(refusal("echo hello\nread line\n").kind(), ErrorKind::Protocol);
    let ended = refusal("echo Unrecognized option >&2; exit 1\n");
    assert!(ended.detail().contains("Unrecognized option"), "{ended}");
}

#[test]
fn entries_without_java_or_classes_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let good = entry(&place, "");
    let cases = [
        (JavaConfiguration { class_path: String::new(), ..good.clone() }, "class_path"),
        (JavaConfiguration { jar: Some("/no/such.jar".into()), ..good.clone() }, "/no/such.jar"),
        (JavaConfiguration { jar: None, ..good.clone() }, "tidepool-stores-"),
        (JavaConfiguration { program: Some("/no/java".into()), ..good }, "/no/java"),
    ];
    for (case, what) in cases {
        let error = JavaProgram::start("s", &case, &[]).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.detail().contains(what), "{error}");
        assert!(error.remedy_text().is_some(), "{error}");
    }
}
