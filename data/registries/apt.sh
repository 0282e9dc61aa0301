# Has apt-get download something small into the current folder, which is empty.
mkdir -p lists/partial archives/partial
set -- -o Dir::State::lists="$PWD/lists" -o Dir::Cache="$PWD" -o Dir::Cache::archives="$PWD/archives" -o APT::Sandbox::User=
apt-get "$@" -o APT::Update::Error-Mode=any update && apt-get "$@" download hostname
