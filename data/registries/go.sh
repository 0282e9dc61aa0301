# Has go download something small into the current folder, which is empty.
GOFLAGS=-modcacherw GOMODCACHE="$PWD/mod" GOCACHE="$PWD/cache" go mod download rsc.io/quote@v1.5.2
