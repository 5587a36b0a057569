//! `tidepool config`: effective options with unit, origin and documentation, rules of directories
//! and quotas of users, of the running node or, with `--check`, of what would be started.

use tidepool_proto::Result;
use tidepool_proto::admin::ConfigEntry;
use tidepool_proto::option::option;
use tidepool_proto::resolve::resolve;

use crate::arguments::ConfigArguments;
use crate::connection::{SocketArgument, socket_path};
use tidepool_daemon::machine::machine;
use tidepool_daemon::settings::gather;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output::{self, Colour, coloured};

/// Runs `config`.
pub fn config(arguments: &ConfigArguments) -> Result<Outcome> {
    let entries = if arguments.check { checked(arguments)? } else { running(arguments)? };
    if arguments.json {
        output::json(&entries)?;
    } else {
        print(&entries);
    }
    Ok(Outcome::Done)
}

fn checked(arguments: &ConfigArguments) -> Result<Vec<ConfigEntry>> {
    let flags = &arguments.flags;
    let (raw, warnings) = gather(flags.config.as_deref(), std::env::vars_os(), &flags.options)?;
    warnings.iter().for_each(|warning| output::note(&format!("warning: {warning}")));
    Ok(resolve(raw, &machine()?)?.entries)
}

fn running(arguments: &ConfigArguments) -> Result<Vec<ConfigEntry>> {
    let flag = arguments.flags.options.socket.as_ref().map(|setting| setting.text.clone());
    let socket = flag.map(Into::into).or_else(|| std::env::var_os("TIDEPOOL_SOCKET"));
    let socket = socket.map(socket_path).transpose()?;
    SocketArgument { socket }.connect().config()
}

fn print(entries: &[ConfigEntry]) {
    let row = |entry: &ConfigEntry| {
        let live = option(&entry.name).is_some_and(|spec| spec.live);
        vec![
            entry.name.clone(),
            if entry.value.is_empty() { "-".to_owned() } else { entry.value.clone() },
            entry.unit.clone(),
            entry.origin.clone(),
            if live { "live" } else { "" }.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = entries.iter().map(row).collect();
    output::table(&["option", "value", "unit", "origin", "change"], &[false; 5], &rows);
    output::line("");
    for entry in entries.iter().filter(|entry| option(&entry.name).is_some()) {
        output::line(&format!("{}: {}", coloured(&entry.name, Colour::Strong), entry.doc));
    }
}
