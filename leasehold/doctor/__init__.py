"""`leasehold doctor`: looks at everything that an installation stands on, and says what to do about what is wrong.

`judging` holds the rules, pure; `redis`, `database`, `programs` and `cloud` look and hand what they saw to them;
`examination` puts the looks one after the other, each within its time.
"""
