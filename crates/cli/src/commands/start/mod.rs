//! `tidepool node start`: validates the configuration, then serves here or in a daemon.

mod detach;
mod print;

use tidepool_daemon::{Sources, place};
use tidepool_proto::{NodeConfig, Result};
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output;

use crate::arguments::StartArguments;
use detach::Readiness;

/// Runs `node start`.
pub fn start(arguments: StartArguments) -> Result<Outcome> {
    let readiness = arguments.ready_descriptor.map(Readiness::adopt).transpose()?;
    let sources = {
        let flags = arguments.flags;
        Sources::new(flags.options, flags.config, arguments.default_log)?
    };
    match readiness {
        Some(readiness) => {
            let served = serve_in_daemon(sources, &readiness);
            if let Err(error) = &served {
                readiness.failed(error);
            }
            served
        }
        None => {
            let (config, warnings) = sources.read()?;
            tidepool_daemon::controller::check_stores_file(&config)?;
            warnings.iter().for_each(|warning| output::note(&format!("warning: {warning}")));
            if config.foreground {
                return serve_in_front(config, sources, arguments.json);
            }
            place::prepare(&config.socket)?;
            let summary = detach::spawn(&config)?;
            if arguments.json {
                output::json(&summary)?
            } else {
                print::print(&summary)
            }
            Ok(Outcome::Done)
        }
    }
}

fn serve_in_front(config: NodeConfig, sources: Sources, json: bool) -> Result<Outcome> {
    place::prepare(&config.socket)?;
    let node = tidepool_daemon::start(config, sources)?;
    // The node is there, whether anybody reads of it or not.
    output::outlive_readers();
    if json {
        output::json(node.summary())?
    } else {
        print::print(node.summary())
    }
    node.run().map(|()| Outcome::Done)
}

fn serve_in_daemon(sources: Sources, readiness: &Readiness) -> Result<Outcome> {
    let node = tidepool_daemon::start_from(sources)?;
    readiness.ready(node.summary());
    node.run().map(|()| Outcome::Done)
}
