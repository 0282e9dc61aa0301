//! A gateway that a person can run: it gives sandboxes a policy, and prints what it hears.

use std::net::TcpListener;

use gateway::{Answers, Gateway, Generation, Message as _, policy};

const USAGE: &str =
    "usage: gateway --policy FILE [--listen ADDR:PORT] [--april] [--env NAME=VALUE]…";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut answers = Answers::default();
    let mut listen = "127.0.0.1:7443".to_owned();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(USAGE);
        match word.as_str() {
            "--policy" => {
                let policy = policy(&std::fs::read_to_string(value()?)?);
                answers.config.policy = Some(policy.encode_to_vec());
            }
            "--listen" => listen = value()?,
            "--april" => answers.generation = Generation::April,
            "--env" => {
                let value = value()?;
                let (name, secret) = value.split_once('=').ok_or(USAGE)?;
                answers
                    .environment
                    .environment
                    .insert(name.to_owned(), secret.to_owned());
            }
            _ => return Err(USAGE.into()),
        }
    }
    (answers.config.version, answers.config.config_revision) = (1, 1);
    answers.config.policy_hash = "1".to_owned();
    let gateway = Gateway::new(answers);
    let _serving = gateway.serve(TcpListener::bind(&listen)?);
    println!("openshell-sandbox --sandbox-id box --openshell-endpoint http://{listen} -- COMMAND");
    gateway.print_calls()
}
