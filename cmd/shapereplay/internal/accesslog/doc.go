// Package accesslog reads the access logs of web servers, and returns the requests in
// the order in which they arrived.
//
// [Open] takes files in any order, and merges them by time: access.log,
// access.log.1 and access.log.2.gz, or the logs of several servers. A [Reader] returns
// one [Record] for each request.
//
// # Formats
//
// The format of each file is recognised from its first lines, unless [Options.Format]
// names it. How a file is compressed is recognised by its first bytes, whatever its name:
// gzip, zstd, xz and bzip2 are unpacked.
//
//	combined       Apache and nginx, also as "common", and with a virtual host in front
//	caddy          what Caddy writes by default
//	traefik        both of Traefik's formats
//	haproxy        what option httplog and httpslog write
//	envoy          Envoy's default format
//	alb, elb       AWS's Application and Classic Load Balancers
//	cloudfront     CloudFront's standard logs
//	w3c            IIS, and others that name their fields in a line #Fields
//	json           one object per line, with the fields that Options.Fields names
//	$remote_addr…  a log_format of nginx
//	usage          the usage log of a gateway of language models, if it is named
//
// The formats of text are patterns in a table, which one parser reads; the formats of JSON
// are tables of names, which another one reads.
//
// # Heads
//
// Collectors of logs write a head before each line: syslog (RFC 3164 and 5424), journald,
// docker compose, Kubernetes (CRI), kubectl logs --prefix, and the times of docker logs -t
// and kubectl logs --timestamps. If most of the first lines of a file have one, or several
// after each other, with a request behind it, it is skipped in all lines of the file, and
// [Stats.Heads] says which it was. A line without it is broken.
//
// # When a request arrived
//
// A shaper sees a request when it arrives, but some servers log when it has ended:
//
//	Apache     %t is the arrival
//	nginx      $time_local, $time_iso8601 and $msec are the end
//	Caddy      ts is the end
//	Traefik    StartUTC, and the time of its text format, is the arrival
//	HAProxy    the date is the arrival, and so it is of Envoy and of Classic Load Balancers
//	ALB        the time is the end; request_creation_time is the arrival
//	CloudFront the time is the end, and so it is of IIS
//	json       taken for the end, as most programs log a request when it is done
//
// From an end the duration is subtracted, if the line tells it. If it does not, the end
// has to do as the arrival: the requests are as many, but each is late by the time that
// its answer took. The combined format has no duration by itself; [Options.Trailing] can
// name one, and then [Options.Stamp] must give the meaning of the time.
//
// # Whole seconds
//
// The text formats tell the time in whole seconds, which is coarse for a shaper. By
// default such requests arrive as they are logged, all at the start of their second and
// in the order of the file. A replay then meets bursts that did not happen: it tells of
// more waiting and more refusals than there were, and a limit found with it is on the safe
// side. With [Options.Spread] the requests of one second are spread evenly over it. A
// replay then misses bursts that did happen, and tells of less. The truth lies between:
// where both give the same answer, it does not depend on the gaps in the log.
// [Stats.Coarse] counts the requests concerned.
//
// # Order, and memory
//
// Lines whose times go back by less than [Options.Window] are sorted. For the sorting, the
// requests of one window are held back, but never more than 256 MiB of them. If they were
// more, the earliest are returned although the window has not passed, so that only a
// smaller step back can be sorted. Where durations are subtracted from the times, a second
// buffer of the same size sorts the arrivals. What is further back is counted as broken.
//
// # Broken lines
//
// A line that can't be used never ends the reading. It is counted by [Reason], and the
// first few of each reason are kept for [Stats]. A line that is longer than 1 MiB is
// broken too, and is not held in memory.
package accesslog
