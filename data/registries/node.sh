# Has npm download something small into the current folder, which is empty.
npm pack --cache ./cache --no-update-notifier is-number
