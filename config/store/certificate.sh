#!/bin/sh
# Makes tls/store.pem and tls/store.key in the current directory, once. Remove both for new ones.
set -eu
[ -f tls/store.pem ] && exit 0
mkdir -p tls
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
  -subj /CN=store -keyout tls/store.key -out tls/store.part 2>/dev/null
mv tls/store.part tls/store.pem
