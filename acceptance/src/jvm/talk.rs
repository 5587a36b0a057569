//! [`Talk`]: a user of Kafka who does what he is told, in one Java program that stays running.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use serde_json::Value;

use super::java::{Dialogue, Java};

const DONE: &str = "ok";
const REFUSED: &str = "refused ";

/// A user of Kafka.
#[derive(Debug)]
pub struct Talk(Dialogue);

impl Talk {
    /// Starts one; `properties` are those of Kafka's clients in Java.
    pub fn start(
        java: &Java,
        address: &str,
        properties: Option<&Path>,
        log: &Path,
    ) -> Result<Self> {
        let mut arguments = vec![address.to_owned()];
        arguments.extend(properties.map(|file| file.display().to_string()));
        Ok(Talk(java.talk("io.tidepool.examples.Talk", &arguments, log)?))
    }

    /// Sends messages with a key.
    pub fn send(&mut self, topic: &str, key: &str, messages: &[String]) -> Result<()> {
        messages.iter().try_for_each(|message| self.do_it(&["send", topic, key, message]))
    }

    /// Sends a message of so many bytes.
    pub fn send_long(&mut self, topic: &str, key: &str, bytes: usize) -> Result<()> {
        self.do_it(&["long", topic, key, &bytes.to_string()])
    }

    /// Sets a property of a topic.
    pub fn set(&mut self, topic: &str, name: &str, value: &str) -> Result<()> {
        self.do_it(&["set", topic, name, value])
    }

    /// Allows a user an operation on a topic.
    pub fn allow(&mut self, user: &str, operation: &str, topic: &str) -> Result<()> {
        self.do_it(&["allow", user, operation, topic])
    }

    /// All messages of a topic that are JSON, with their keys, in the order of each partition.
    pub fn read(&mut self, topic: &str) -> Result<Vec<(String, Value)>> {
        self.0.say(&format!("read\t{topic}"))?;
        let mut messages = Vec::new();
        loop {
            let line = self.0.answer()?;
            if line == DONE {
                return Ok(messages);
            }
            ensure!(!line.starts_with(REFUSED), "reading {topic}: {line}");
            if let Some((key, text)) = line.split_once('\t') {
                let message = serde_json::from_str(text).ok();
                messages.extend(message.map(|message| (key.to_owned(), message)));
            }
        }
    }

    fn do_it(&mut self, words: &[&str]) -> Result<()> {
        let answer = self.0.ask(&words.join("\t"))?;
        if answer != DONE {
            bail!("{} {}: {answer}", words[0], words[1]);
        }
        Ok(())
    }
}
