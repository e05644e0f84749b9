package lua

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// clientOption turns a store's URL into the client's addresses and credentials.
// Errors never quote the URL: it may carry a password.
func clientOption(raw string) (rueidis.ClientOption, error) {
	var o rueidis.ClientOption
	// By hand: net/url refuses several host:port pairs in one authority.
	scheme, rest, ok := strings.Cut(raw, "://")
	authority, path, _ := strings.Cut(rest, "/")
	if !ok || authority == "" {
		return o, fmt.Errorf("%w: want scheme://[user:password@]host:port[,host:port][/db]", ErrURL)
	}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, password, _ := strings.Cut(authority[:i], ":")
		var err1, err2 error
		o.Username, err1 = url.PathUnescape(user)
		o.Password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return o, fmt.Errorf("%w: bad escape in the credentials", ErrURL)
		}
		authority = authority[i+1:]
	}
	for address := range strings.SplitSeq(authority, ",") {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			host, port = address, "6379"
		}
		if n, err := strconv.Atoi(port); host == "" || err != nil || n < 1 || n > 65535 {
			return o, fmt.Errorf("%w: want host:port", ErrURL)
		}
		o.InitAddress = append(o.InitAddress, net.JoinHostPort(host, port))
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	db := parts[0]
	switch scheme {
	case "rediss":
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		o.ForceSingleClient = true
	case "redis":
		o.ForceSingleClient = true
	case "redis+cluster":
		o.ShuffleInit = true
		if db != "" && db != "0" {
			return o, fmt.Errorf("%w: a cluster has database 0 only", ErrURL)
		}
	case "redis+sentinel":
		if db == "" {
			return o, fmt.Errorf("%w: redis+sentinel:// needs the master's name as its path", ErrURL)
		}
		o.Sentinel = rueidis.SentinelOption{MasterSet: db}
		db = ""
		if len(parts) > 1 {
			db = parts[1]
		}
	default:
		return o, fmt.Errorf("%w: unknown scheme %q", ErrURL, scheme)
	}
	if len(o.InitAddress) > 1 && o.ForceSingleClient {
		return o, fmt.Errorf("%w: several hosts need redis+cluster:// or redis+sentinel://", ErrURL)
	}
	if db != "" {
		n, err := strconv.Atoi(db)
		if err != nil || n < 0 {
			return o, fmt.Errorf("%w: the path must be a database number", ErrURL)
		}
		o.SelectDB = n
	}
	return o, nil
}
