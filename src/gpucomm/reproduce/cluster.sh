#!/usr/bin/env bash
# Several hosts on one machine: network namespaces on a bridge, every link as slow as told, both ways.
# Needs root, iproute2 (ip, tc) and util-linux (unshare, nsenter).
#
#   cluster.sh up N RATE       hosts host1..hostN at 10.78.0.1..N, each with an eth0; RATE as tc takes it: 1gbit
#   cluster.sh exec I CMD...   runs a command on host I: its own network, host name, /dev/shm and /etc/hosts
#   cluster.sh agent HOST CMD  the same by name, in place of ssh; $CLUSTER/agent does so without arguments of ours
#   cluster.sh stats           one line of each host: bytes sent and received
#   cluster.sh down            removes all that up has made, also where it came half-way
#
# CLUSTER is a folder of the caller's, which keeps the state. Nothing leads out of the hosts.
set -euo pipefail
state=${CLUSTER:?a folder for the state} self=$(readlink -f "$0")
name=$(basename "$state") # several clusters may be up beside each other

shape() { # NETNS DEVICE RATE; the burst holds a 64 KiB packet
  ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "$3" burst 256kb limit 4mb
}

up() {
  mkdir -p "$state"
  printf '#!/bin/sh\nCLUSTER="%s" exec bash "%s" agent "$@"\n' "$state" "$self" > "$state/agent"
  chmod +x "$state/agent"
  echo "127.0.0.1 localhost" > "$state/hosts"
  for i in $(seq "$1"); do echo "10.78.0.$i host$i" >> "$state/hosts"; done
  ip netns add "$name-0"
  ip -n "$name-0" link add br0 type bridge
  ip -n "$name-0" link set br0 up
  for i in $(seq "$1"); do
    ip netns add "$name-$i"
    ip link add eth0 netns "$name-$i" type veth peer name "port$i" netns "$name-0"
    ip -n "$name-$i" link set lo up
    ip -n "$name-$i" addr add "10.78.0.$i/24" dev eth0
    ip -n "$name-$i" link set eth0 up
    ip -n "$name-0" link set "port$i" master br0 up
    shape "$name-$i" eth0 "$2"
    shape "$name-0" "port$i" "$2"
    # its process keeps the host's name, mounts and shared memory
    ip netns exec "$name-$i" unshare --uts --ipc --mount bash -c "
      hostname host$i; mount -t tmpfs tmpfs /dev/shm; mount --bind '$state/hosts' /etc/hosts
      echo \$\$ > '$state/pid$i.new'; mv '$state/pid$i.new' '$state/pid$i'; exec sleep infinity" \
      < /dev/null > /dev/null 2>&1 &
  done
  for i in $(seq "$1"); do until [ -e "$state/pid$i" ]; do sleep 0.02; done; done
}

down() {
  for net in $(ip netns list | cut -d' ' -f1 | grep -x "$name-[0-9]*"); do
    kill -KILL $(ip netns pids "$net") 2> /dev/null # what a job may have left there, and the host's own process
    ip netns del "$net"
  done
  rm -f "$state"/pid* "$state/hosts" "$state/agent"
}

case ${1:-} in
up) up "$2" "$3" ;;
exec)
  pid=$(cat "$state/pid$2")
  shift 2
  exec nsenter -t "$pid" --net --uts --ipc --mount -- "$@" ;;
agent)
  shift
  while [ "${1#-}" != "$1" ]; do shift; done
  host=$1
  shift
  exec bash "$self" exec "${host#host}" /bin/sh -c "$*" ;;
stats)
  for pid in "$state"/pid?; do
    bash "$self" exec "${pid#"$state/pid"}" cat /sys/class/net/eth0/statistics/{tx,rx}_bytes | tr '\n' ' '
    echo
  done ;;
down) set +e; down ;;
*) sed -n '2,12p' "$0"; exit 2 ;;
esac
