//! Secrets that exist outside alone: what stands for them inside, where they may go, and what must not come back.
//!
//! A placeholder is replaced in the head of a request on its way to where its secret may go, and nowhere else; a request
//! that holds one in another place, or in disguise, is refused. What of it leaves is a [`release::Released`].

pub mod body;
pub mod echo;
pub mod matcher;
pub mod release;
pub mod vault;
